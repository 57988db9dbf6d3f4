//! The OpenAPI document and the router have the same routes.

use std::collections::{BTreeMap, BTreeSet};

use axum::body::{Body, to_bytes};
use axum::http::{Method, Request, StatusCode};
use axum::response::Response;
use serde_json::Value;
use tower::ServiceExt;

use crate::openapi_validation::{TestResponse, assert_response, operations};
use crate::support::address;
use crate::test_coordinator::{TestCoordinator, digits_spec};

async fn ask(shop: &TestCoordinator, request: Request<Body>) -> Response {
    shop.router.clone().oneshot(request).await.unwrap()
}

/// A path with its parameters filled in.
fn filled(pattern: &str) -> String {
    let digest = "ab".repeat(32);
    let account = address(1).to_string();
    let parts = [("{id}", digest.as_str()), ("{digest}", &digest), ("{round}", "1")];
    let path =
        parts.iter().fold(pattern.to_owned(), |path, (name, value)| path.replace(name, value));
    path.replace("{address}", &account)
}

#[tokio::test]
async fn documented_methods_are_served_and_other_methods_are_405_with_allow() {
    let dir = tempfile::tempdir().unwrap();
    let shop = TestCoordinator::open(dir.path(), digits_spec());
    let document = florin_coordinator::openapi();
    let mut known: BTreeMap<String, BTreeSet<Method>> = BTreeMap::new();
    for ((method, path), _) in operations(&document) {
        known.entry(path).or_default().insert(method);
    }
    assert!(known.len() >= 20, "{known:?}");
    for (path, methods) in known {
        for method in ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"] {
            let method: Method = method.parse().unwrap();
            let request = Request::builder().method(&method).uri(filled(&path));
            let answer = ask(&shop, request.body(Body::empty()).unwrap()).await;
            let refused = answer.status() == StatusCode::METHOD_NOT_ALLOWED;
            assert_eq!(refused, !methods.contains(&method), "{method} {path}");
            if refused {
                let allow = answer.headers()["allow"].to_str().unwrap().to_owned();
                // A route that serves GET serves HEAD too.
                let without_head = |methods: BTreeSet<Method>| -> BTreeSet<Method> {
                    methods.into_iter().filter(|method| method != Method::HEAD).collect()
                };
                let allowed = allow.split(',').map(|m| m.parse().unwrap()).collect();
                assert_eq!(without_head(allowed), without_head(methods.clone()), "{path}");
            } else if path != "/v1/ledger" {
                // The fake ledger RPC echoes the request, which is empty here.
                check(&method, &filled(&path), answer).await;
            }
        }
    }
    shop.stop().await;
}

async fn check(method: &Method, path: &str, answer: Response) -> Value {
    let (parts, body) = answer.into_parts();
    let body = to_bytes(body, usize::MAX).await.unwrap();
    let answered = TestResponse { status: parts.status, headers: &parts.headers, body: &body };
    assert_response(method, path, &answered);
    serde_json::from_slice(&body).unwrap_or_default()
}

/// The router is built from the list that the document is built from. Only the operator's listener
/// has other routes, and the page, whose routes are files.
#[test]
fn routes_are_registered_in_one_place() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/server");
    for file in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let text = std::fs::read_to_string(file.path()).unwrap();
        let made = text.matches(".route(").count();
        let expected = match file.file_name().to_str().unwrap() {
            "routes.rs" => 1,
            "observe.rs" => 3,
            "operator.rs" => 1,
            _ => 0,
        };
        assert_eq!(made, expected, "{:?}", file.path());
    }
}

#[tokio::test]
async fn the_served_document_is_the_generated_one() {
    let dir = tempfile::tempdir().unwrap();
    let shop = TestCoordinator::open(dir.path(), digits_spec());
    let request = Request::get("/openapi.json").body(Body::empty()).unwrap();
    let served = check(&Method::GET, "/openapi.json", ask(&shop, request).await).await;
    assert_eq!(served, florin_coordinator::openapi());
    assert_eq!(served["openapi"], "3.1.0");
    // Every referenced schema exists.
    let text = served.to_string();
    let referred = text.split("#/components/schemas/").skip(1);
    for name in referred.map(|rest| rest.split('"').next().unwrap()) {
        assert!(served["components"]["schemas"].get(name).is_some(), "{name} is missing");
    }
    shop.stop().await;
}

#[tokio::test]
async fn a_wrong_content_type_is_rejected_and_the_error_has_the_request_id() {
    let dir = tempfile::tempdir().unwrap();
    let shop = TestCoordinator::open(dir.path(), digits_spec());
    let blob = format!("/v1/blobs/{}", "ab".repeat(32));
    for (method, path, content_type, status) in [
        (Method::POST, "/v1/registrations", "text/xml", 415),
        (Method::POST, "/v1/registrations", "application/json; charset=utf-8", 400),
        (Method::POST, "/v1/ledger", "multipart/form-data", 415),
        (Method::PUT, blob.as_str(), "application/json", 415),
        (Method::PUT, blob.as_str(), "application/octet-stream", 404),
    ] {
        let request =
            Request::builder().method(&method).uri(path).header("content-type", content_type);
        let answer = ask(&shop, request.body(Body::from("{}")).unwrap()).await;
        assert_eq!(answer.status().as_u16(), status, "{method} {path} {content_type}");
        let id = answer.headers()["x-request-id"].to_str().unwrap().to_owned();
        let body = check(&method, path, answer).await;
        assert_eq!(body["request_id"], id.as_str());
    }
    shop.stop().await;
}
