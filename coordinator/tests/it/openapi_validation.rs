//! Validates every request and response in the tests against the OpenAPI document.

use std::cell::RefCell;
use std::collections::BTreeMap;

use axum::http::{HeaderMap, Method, StatusCode};
use boon::{Compiler, SchemaIndex, Schemas};
use serde_json::{Map, Value, json};

/// The base URI of references within the document.
const BASE_URI: &str = "http://florin.test/document.json";

/// The document, with a compiled validator for every body.
pub(crate) struct OpenApiValidator {
    pub(crate) whole: Value,
    schemas: Schemas,
    /// By operation, status (or "request") and media type.
    bodies: BTreeMap<String, SchemaIndex>,
}

thread_local! {
    static DOCUMENT: RefCell<OpenApiValidator> = RefCell::new(OpenApiValidator::read());
}

fn key(operation: &str, what: &str, media: &str) -> String {
    format!("{operation} {what} {media}").replace(['/', '~', '%', ' ', ';', '='], "_")
}

/// The schemas of a request's or a response's media types.
fn contents(part: &Value) -> impl Iterator<Item = (&String, &Value)> {
    let content = part.get("content").and_then(Value::as_object);
    content.into_iter().flatten().map(|(media, content)| (media, &content["schema"]))
}

impl OpenApiValidator {
    fn read() -> Self {
        let whole = florin_coordinator::openapi();
        let mut all = Map::new();
        for (_, operation) in operations(&whole) {
            let id = operation["operationId"].as_str().unwrap();
            for (media, schema) in contents(&operation["requestBody"]) {
                all.insert(key(id, "request", media), schema.clone());
            }
            for (status, response) in operation["responses"].as_object().unwrap() {
                for (media, schema) in contents(response) {
                    all.insert(key(id, status, media), schema.clone());
                }
            }
        }
        let names: Vec<String> = all.keys().cloned().collect();
        let (mut schemas, mut compiler) = (Schemas::new(), Compiler::new());
        let resource = json!({"components": whole["components"], "bodies": all});
        compiler.add_resource(BASE_URI, resource).unwrap();
        let compile = |name: String| {
            let at = format!("{BASE_URI}#/bodies/{name}");
            let index = compiler.compile(&at, &mut schemas);
            (name, index.unwrap_or_else(|error| panic!("{at}: {error}")))
        };
        let bodies = names.into_iter().map(compile).collect();
        Self { whole, schemas, bodies }
    }

    /// The operation that a request matches.
    fn operation(&self, method: &Method, path: &str) -> Option<&Value> {
        let here = path.split('?').next().unwrap();
        let fits = |pattern: &str| {
            let (a, b) = (pattern.split('/'), here.split('/'));
            a.clone().count() == b.clone().count()
                && a.zip(b).all(|(a, b)| a == b || a.starts_with('{') && !b.is_empty())
        };
        let paths = self.whole["paths"].as_object().unwrap();
        let (_, found) = paths.iter().find(|(pattern, _)| fits(pattern))?;
        found.get(method.as_str().to_lowercase())
    }

    fn validate(&self, key: &str, body: &[u8]) -> Result<(), String> {
        let index = self.bodies.get(key).ok_or_else(|| format!("{key} is not in the document"))?;
        let value: Value = serde_json::from_slice(body).map_err(|error| error.to_string())?;
        self.schemas.validate(&value, *index).map_err(|error| format!("{error}\n{value:#}"))
    }

    fn check_response(&self, asked: (&Method, &str), answer: &TestResponse) -> Result<(), String> {
        if !answer.headers.contains_key("x-request-id") {
            return Err("the response has no x-request-id".to_owned());
        }
        let Some(operation) = self.operation(asked.0, asked.1) else {
            let none = matches!(answer.status.as_u16(), 404 | 405 | 429);
            return if none { Ok(()) } else { Err("the operation is not documented".to_owned()) };
        };
        let status = answer.status.as_str();
        let response = &operation["responses"][status];
        if response.is_null() {
            return Err(format!("status {status} is not documented"));
        }
        let media = answer.headers.get("content-type").map(|media| media.to_str().unwrap());
        let documented: Vec<&str> = contents(response).map(|(media, _)| media.as_str()).collect();
        match media {
            None if answer.body.is_empty() => Ok(()),
            Some(media) if !documented.contains(&media) => {
                Err(format!("{media} is not in {documented:?}"))
            }
            Some("application/json") => {
                let id = operation["operationId"].as_str().unwrap();
                self.validate(&key(id, status, "application/json"), answer.body)
            }
            Some(_) => Ok(()),
            None => Err(format!("no content type; expected one of {documented:?}")),
        }
    }
}

/// Every operation, with its method and path.
pub(crate) fn operations(document: &Value) -> Vec<((Method, String), &Value)> {
    let paths = document["paths"].as_object().unwrap().iter();
    let all = paths.flat_map(|(path, methods)| {
        methods.as_object().unwrap().iter().map(move |(method, operation)| {
            ((method.to_uppercase().parse().unwrap(), path.clone()), operation)
        })
    });
    all.collect()
}

/// A response.
pub(crate) struct TestResponse<'a> {
    pub(crate) status: StatusCode,
    pub(crate) headers: &'a HeaderMap,
    pub(crate) body: &'a [u8],
}

/// Panics if a response does not match the document.
pub(crate) fn assert_response(method: &Method, path: &str, answer: &TestResponse) {
    let verdict = DOCUMENT.with_borrow(|document| document.check_response((method, path), answer));
    if let Err(why) = verdict {
        let text = String::from_utf8_lossy(answer.body);
        panic!("{method} {path}: response {}: {why}\n{text}", answer.status);
    }
}

/// Panics if an accepted JSON body does not match the document.
pub(crate) fn assert_request_body(method: &Method, path: &str, body: &[u8]) {
    let verdict = DOCUMENT.with_borrow(|document| {
        let operation =
            document.operation(method, path).ok_or("the operation is not documented")?;
        let id = operation["operationId"].as_str().unwrap();
        document.validate(&key(id, "request", "application/json"), body)
    });
    if let Err(why) = verdict {
        panic!("{method} {path}: accepted request body: {why}");
    }
}
