//! The OpenAPI 3.1 document, generated from the list of routes and from the message types.

use std::collections::{BTreeMap, BTreeSet};

use florin_protocol::{ErrorCode, Rejection};
use serde_json::{Map, Value, json};

use super::error::status;
use super::events::EVENT_STREAM;
use super::openapi_schemas::Components;
use super::route::{
    BYTES, HttpMethod, JSON, RequestBody, ResponseContent, Route, SuccessResponse, TEXT,
};

/// The OpenAPI document of some routes.
pub(super) fn document(routes: &[Route]) -> Value {
    let mut all = Components::default();
    let mut paths: BTreeMap<&str, Map<String, Value>> = BTreeMap::new();
    for route in routes {
        let operation = operation(route, &mut all);
        paths
            .entry(route.path)
            .or_default()
            .insert(method_name(route.method).to_owned(), operation);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Florin: a market's coordinator",
            "version": env!("CARGO_PKG_VERSION"),
            "description": DESCRIPTION,
            "license": {"name": "Apache-2.0 OR MIT"},
        },
        "paths": paths,
        "components": {"schemas": all.0},
    })
}

const DESCRIPTION: &str = "docs/protocol.md specifies what is signed, hashed and paid, byte by \
    byte. Every response has an `x-request-id` header; quote it to the operator. Before a request \
    reaches a route: an unknown path is 404 `NOT_FOUND`, another method is 405 \
    `METHOD_NOT_ALLOWED` with `Allow`, a request that is not valid HTTP is 400 `MALFORMED`, headers \
    above the operator's limit are 431 `TOO_LARGE`, and a compressed body is 415 \
    `WRONG_CONTENT_TYPE`. JSON bodies have no unknown fields, and no list in the place of an \
    object. Numbers are exact: use a JSON parser that preserves 64-bit integers.";

const fn method_name(verb: HttpMethod) -> &'static str {
    match verb {
        HttpMethod::Get => "get",
        HttpMethod::Post => "post",
        HttpMethod::Put => "put",
        HttpMethod::Head => "head",
    }
}

fn operation(route: &Route, all: &mut Components) -> Value {
    let parameters: Vec<Value> = path_parameters(route.path, all)
        .into_iter()
        .chain(route.parameters.iter().map(|q| q.json(all)))
        .collect();
    let name: String =
        route.path.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    let mut operation = json!({
        "operationId": format!("{}{name}", method_name(route.method)),
        "summary": route.summary,
        "parameters": parameters,
        "responses": responses(route, all),
    });
    if let (Some(body), Value::Object(operation)) = (request_body(route, all), &mut operation) {
        operation.insert("requestBody".to_owned(), body);
    }
    operation
}

/// The parameters of a path. The name of a parameter determines its schema.
fn path_parameters(path: &str, all: &mut Components) -> Vec<Value> {
    let names = path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let parameter = |name: &str| {
        let schema = match name {
            "id" => all.add_schema::<florin_protocol::TaskId>(),
            "round" => all.add_schema::<florin_protocol::RoundNumber>(),
            "address" => all.add_schema::<florin_protocol::Address>(),
            _ => all.add_schema::<florin_protocol::Digest>(),
        };
        json!({"name": name, "in": "path", "required": true, "schema": schema})
    };
    names.map(parameter).collect()
}

fn request_body(route: &Route, all: &mut Components) -> Option<Value> {
    let (media, schema, what) = match &route.request_body {
        RequestBody::Nothing => return None,
        RequestBody::Json(refer, max) | RequestBody::Signed(refer, max) => {
            (JSON, refer(all), format!("at most {max} bytes"))
        }
        RequestBody::Bytes(how_many) => (BYTES, json!({}), (*how_many).to_owned()),
    };
    // A PUT of content that is already stored ignores its body.
    let required = route.method != HttpMethod::Put;
    Some(json!({"required": required, "description": what, "content": {media: {"schema": schema}}}))
}

fn responses(route: &Route, all: &mut Components) -> Value {
    let mut responses = Map::new();
    for answer in &route.responses {
        responses.insert(answer.status.to_string(), success(answer, all));
    }
    // Every route can reject by rate limit or body size, or fail with an internal error.
    let codes: BTreeSet<ErrorCode> = route
        .rejection_codes
        .iter()
        .copied()
        .chain([ErrorCode::RateLimited, ErrorCode::TooLarge, ErrorCode::Internal])
        .collect();
    let mut by_status: BTreeMap<u16, Vec<&str>> = BTreeMap::new();
    for code in codes {
        by_status.entry(status(code).as_u16()).or_default().push(code.as_str());
    }
    for (status, codes) in by_status {
        responses.insert(status.to_string(), refusal(status, &codes, all));
    }
    if route.method == HttpMethod::Head {
        // A response to HEAD has no body, regardless of its headers.
        for response in responses.values_mut().filter_map(Value::as_object_mut) {
            response.remove("content");
        }
    }
    Value::Object(responses)
}

fn success(answer: &SuccessResponse, all: &mut Components) -> Value {
    let content = match answer.form {
        ResponseContent::Nothing => None,
        ResponseContent::Text => Some((TEXT, json!({"type": "string"}))),
        ResponseContent::Bytes => Some((BYTES, json!({}))),
        ResponseContent::Events(refer) => Some((EVENT_STREAM, events(&refer(all)))),
        ResponseContent::Anything => Some((JSON, json!({"type": "object"}))),
        ResponseContent::Json(refer) => Some((JSON, refer(all))),
        ResponseContent::List(refer) => Some((JSON, json!({"type": "array", "items": refer(all)}))),
    };
    let mut response =
        json!({"description": answer.description, "headers": {"x-request-id": id_header()}});
    if let (Some((media, schema)), Value::Object(response)) = (content, &mut response) {
        response.insert("content".to_owned(), json!({media: {"schema": schema}}));
    }
    response
}

fn refusal(status: u16, codes: &[&str], all: &mut Components) -> Value {
    let rejection = all.add_schema::<Rejection>();
    let mut headers = json!({"x-request-id": id_header()});
    if let (429 | 503, Value::Object(headers)) = (status, &mut headers) {
        let after =
            json!({"required": true, "description": "seconds", "schema": {"type": "string"}});
        headers.insert("retry-after".to_owned(), after);
    }
    json!({
        "description": format!("rejected: {}", codes.join(", ")),
        "headers": headers,
        "content": {JSON: {"schema": {
            "allOf": [rejection],
            "properties": {"code": {"enum": codes}, "request_id": {"type": "string"}},
            "required": ["request_id"],
        }}},
    })
}

fn id_header() -> Value {
    let what = "identifies the request in the operator's log";
    json!({"required": true, "description": what, "schema": {"type": "string"}})
}

/// The schema of a server-sent event, whose data is JSON: a value for each task.
fn events(value: &Value) -> Value {
    let data = json!({"type": "object", "additionalProperties": value});
    json!({
        "type": "object",
        "required": ["event", "data"],
        "properties": {
            "event": {"const": "tasks"},
            "data": {"type": "string", "contentMediaType": "application/json", "contentSchema": data},
            "retry": {"type": "integer", "minimum": 0},
        },
    })
}
