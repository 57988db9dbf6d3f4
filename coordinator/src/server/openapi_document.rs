//! The OpenAPI 3.1 document, generated from the list of routes and from the message types.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;

use axum::http::header;
use axum::response::{IntoResponse, Response};
use florin_protocol::{ErrorCode, NodeSignature, Rejection, Role, Signed};
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::error::status;
use super::routes::{self, HttpMethod, Route};
use crate::config::WAIT_MS_MAX;

/// The document's schemas by name.
#[derive(Default)]
pub(super) struct Components(BTreeMap<String, Value>);

/// Adds a schema to the document and returns a reference to it.
type SchemaRef = fn(&mut Components) -> Value;

/// A route's request body.
#[derive(Clone, Copy)]
pub(super) enum RequestBody {
    Nothing,
    /// JSON, and its maximum length in bytes.
    Json(SchemaRef, usize),
    /// JSON with the signature of a registered node key, and its maximum length in bytes.
    Signed(SchemaRef, usize),
    /// Bytes, with a description of their length.
    Bytes(&'static str),
}

impl RequestBody {
    pub(super) fn json<T: ToSchema>(max: usize) -> Self {
        Self::Json(Components::schema_ref::<T>, max)
    }

    pub(super) fn signed<T: ToSchema>(max: usize) -> Self {
        Self::Signed(Components::signed_schema_ref::<T>, max)
    }

    pub(super) const fn bytes(length: &'static str) -> Self {
        Self::Bytes(length)
    }

    /// The only content type that a request may declare.
    pub(super) const fn media_type(&self) -> Option<&'static str> {
        match self {
            Self::Nothing => None,
            Self::Json(..) | Self::Signed(..) => Some(JSON),
            Self::Bytes(_) => Some(BYTES),
        }
    }
}

const JSON: &str = "application/json";
const BYTES: &str = "application/octet-stream";
const TEXT: &str = "text/plain; charset=utf-8";

/// A route's response on success.
pub(super) struct SuccessResponse {
    status: u16,
    description: &'static str,
    form: ResponseContent,
}

enum ResponseContent {
    Nothing,
    Text,
    Bytes,
    Anything,
    Json(SchemaRef),
    List(SchemaRef),
}

impl SuccessResponse {
    const fn new(status: u16, description: &'static str, form: ResponseContent) -> Self {
        Self { status, description, form }
    }

    pub(super) fn json<T: ToSchema>() -> Self {
        Self::new(200, "success", ResponseContent::Json(Components::schema_ref::<T>))
    }

    pub(super) fn signed<T: ToSchema>() -> Self {
        Self::new(
            200,
            "signed by the coordinator",
            ResponseContent::Json(Components::signed_schema_ref::<T>),
        )
    }

    pub(super) fn list<T: ToSchema>() -> Self {
        Self::new(200, "success", ResponseContent::List(Components::schema_ref::<T>))
    }

    pub(super) fn signed_list<T: ToSchema>() -> Self {
        Self::new(
            200,
            "each signed by its sender",
            ResponseContent::List(Components::signed_schema_ref::<T>),
        )
    }

    pub(super) const fn bytes(what: &'static str) -> Self {
        Self::new(200, what, ResponseContent::Bytes)
    }

    pub(super) const fn text(what: &'static str) -> Self {
        Self::new(200, what, ResponseContent::Text)
    }

    pub(super) const fn unready() -> Self {
        Self::new(503, "not ready: the component that does not respond", ResponseContent::Text)
    }

    pub(super) const fn anything(what: &'static str) -> Self {
        Self::new(200, what, ResponseContent::Anything)
    }

    pub(super) const fn nothing(what: &'static str) -> Self {
        Self::new(204, what, ResponseContent::Nothing)
    }
}

/// An optional parameter in the query string or in the headers.
pub(super) enum Parameter {
    Number {
        name: &'static str,
        what: &'static str,
    },
    Role,
    /// A header.
    Header {
        name: &'static str,
        what: &'static str,
        pattern: &'static str,
    },
}

impl Parameter {
    pub(super) const AFTER: Self =
        Self::Number { name: "after", what: "the last `sequence` that the client has seen" };
    pub(super) const WAIT_MS: Self =
        Self::Number { name: "wait_ms", what: "long-poll timeout in milliseconds; at most 30,000" };
    pub(super) const ROLE: Self = Self::Role;

    pub(super) const OFFSET: Self = Self::Header {
        name: "upload-offset",
        what: "the offset at which the body continues the upload; default 0",
        pattern: "^[0-9]{1,19}$",
    };
    pub(super) const TOKEN: Self = Self::Header {
        name: "upload-token",
        what: "64 random hexadecimal digits; a request with the same token resumes the upload",
        pattern: "^[0-9a-f]{64}$",
    };

    fn json(&self, all: &mut Components) -> Value {
        let place = if matches!(self, Self::Header { .. }) { "header" } else { "query" };
        let (name, what, schema) = match self {
            Self::Header { name, what, pattern } => {
                (*name, *what, json!({"type": "string", "pattern": pattern}))
            }
            Self::Number { name, what } => {
                (*name, *what, json!({"type": "integer", "minimum": 0, "maximum": u64::MAX}))
            }
            Self::Role => ("role", "the role; default any", all.add_schema::<Role>()),
        };
        json!({"name": name, "in": place, "required": false, "description": what, "schema": schema})
    }
}

impl Components {
    fn schema_ref<T: ToSchema>(&mut self) -> Value {
        self.add_schema::<T>()
    }

    /// Adds the schemas of a type and of its parts; returns a reference to the type's schema.
    fn add_schema<T: ToSchema>(&mut self) -> Value {
        let name = T::name().into_owned();
        if !self.0.contains_key(&name) {
            let mut found = vec![(name.clone(), T::schema())];
            T::schemas(&mut found);
            for (name, schema) in found {
                // A schema that cannot be serialised accepts nothing; every test of the document
                // then fails.
                let schema = serde_json::to_value(schema).unwrap_or(Value::Bool(false));
                self.0.entry(name).or_insert(schema);
            }
        }
        json!({"$ref": format!("#/components/schemas/{name}")})
    }

    fn signed_schema_ref<T: ToSchema>(&mut self) -> Value {
        let (body, signature) = (self.add_schema::<T>(), self.add_schema::<NodeSignature>());
        // The name that the derived schemas use for a nested signed message.
        let name = format!("{}_{}", <Signed<T> as ToSchema>::name(), T::name());
        let signed = json!({
            "type": "object",
            "required": ["body", "signature"],
            "properties": {"body": body, "signature": signature},
        });
        self.0.insert(name.clone(), signed);
        json!({"$ref": format!("#/components/schemas/{name}")})
    }
}

/// The OpenAPI document.
#[must_use]
pub fn openapi() -> Value {
    let mut all = Components::default();
    let mut paths: BTreeMap<&str, Map<String, Value>> = BTreeMap::new();
    for route in routes::all() {
        let operation = operation(&route, &mut all);
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
    `METHOD_NOT_ALLOWED` with `Allow`, and headers above the operator's limit are 431. Numbers are \
    exact: use a JSON parser that preserves 64-bit integers.";

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

/// Serves the document.
pub(super) async fn serve() -> Response {
    static TEXT: OnceLock<String> = OnceLock::new();
    let text = TEXT.get_or_init(|| openapi().to_string());
    ([(header::CONTENT_TYPE, JSON)], text.as_str()).into_response()
}

// The limit in the description of `wait_ms`.
const _: () = assert!(WAIT_MS_MAX == 30_000);
