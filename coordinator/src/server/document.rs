//! The interface described for programs: OpenAPI 3.1, made of the list of routes and of the types that travel.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;

use axum::http::header;
use axum::response::{IntoResponse, Response};
use florin_protocol::{Code, NodeSignature, Rejection, Role, Signed};
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::error::status;
use super::routes::{self, Route, Verb};
use crate::config::WAIT_MS_MAX;

/// Schemas by name.
#[derive(Default)]
pub(super) struct Components(BTreeMap<String, Value>);

/// What makes a schema and says how to refer to it.
type Refer = fn(&mut Components) -> Value;

/// What a route takes.
#[derive(Clone, Copy)]
pub(super) enum Body {
    Nothing,
    /// JSON of at most so many bytes.
    Json(Refer, usize),
    /// The same, with the signature of a registered node key.
    Signed(Refer, usize),
    /// Bytes, and how many.
    Bytes(&'static str),
}

impl Body {
    pub(super) fn json<T: ToSchema>(max: usize) -> Self {
        Self::Json(Components::refer::<T>, max)
    }

    pub(super) fn signed<T: ToSchema>(max: usize) -> Self {
        Self::Signed(Components::refer_signed::<T>, max)
    }

    pub(super) const fn bytes(how_many: &'static str) -> Self {
        Self::Bytes(how_many)
    }

    /// The only type that it may say it is of.
    pub(super) const fn media(&self) -> Option<&'static str> {
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

/// What a route answers when it does what it was asked.
pub(super) struct Answer {
    status: u16,
    what: &'static str,
    form: Form,
}

enum Form {
    Nothing,
    Text,
    Bytes,
    Anything,
    Json(Refer),
    List(Refer),
}

impl Answer {
    const fn of(status: u16, what: &'static str, form: Form) -> Self {
        Self { status, what, form }
    }

    pub(super) fn json<T: ToSchema>() -> Self {
        Self::of(200, "as asked", Form::Json(Components::refer::<T>))
    }

    pub(super) fn signed<T: ToSchema>() -> Self {
        Self::of(200, "signed by the coordinator", Form::Json(Components::refer_signed::<T>))
    }

    pub(super) fn list<T: ToSchema>() -> Self {
        Self::of(200, "as asked", Form::List(Components::refer::<T>))
    }

    pub(super) fn signed_list<T: ToSchema>() -> Self {
        Self::of(200, "each signed by its sender", Form::List(Components::refer_signed::<T>))
    }

    pub(super) const fn bytes(what: &'static str) -> Self {
        Self::of(200, what, Form::Bytes)
    }

    pub(super) const fn text(what: &'static str) -> Self {
        Self::of(200, what, Form::Text)
    }

    pub(super) const fn unready() -> Self {
        Self::of(503, "which of them does not", Form::Text)
    }

    pub(super) const fn anything(what: &'static str) -> Self {
        Self::of(200, what, Form::Anything)
    }

    pub(super) const fn nothing(what: &'static str) -> Self {
        Self::of(204, what, Form::Nothing)
    }
}

/// A parameter behind the question mark, or in the head; none is required.
pub(super) enum Query {
    Number {
        name: &'static str,
        what: &'static str,
    },
    Role,
    /// In the head instead.
    Head {
        name: &'static str,
        what: &'static str,
        pattern: &'static str,
    },
}

impl Query {
    pub(super) const AFTER: Self =
        Self::Number { name: "after", what: "the `sequence` that is known" };
    pub(super) const WAIT_MS: Self =
        Self::Number { name: "wait_ms", what: "milliseconds to wait; more than 30,000 are 30,000" };
    pub(super) const ROLE: Self = Self::Role;

    pub(super) const OFFSET: Self = Self::Head {
        name: "upload-offset",
        what: "where the body goes on; 0 without it",
        pattern: "^[0-9]{1,19}$",
    };
    pub(super) const TOKEN: Self = Self::Head {
        name: "upload-token",
        what: "64 hexadecimal digits that nobody can guess: who knows them goes on with the same upload",
        pattern: "^[0-9a-f]{64}$",
    };

    fn json(&self, all: &mut Components) -> Value {
        let place = if matches!(self, Self::Head { .. }) { "header" } else { "query" };
        let (name, what, schema) = match self {
            Self::Head { name, what, pattern } => {
                (*name, *what, json!({"type": "string", "pattern": pattern}))
            }
            Self::Number { name, what } => {
                (*name, *what, json!({"type": "integer", "minimum": 0, "maximum": u64::MAX}))
            }
            Self::Role => ("role", "in which role; any, if none is named", all.component::<Role>()),
        };
        json!({"name": name, "in": place, "required": false, "description": what, "schema": schema})
    }
}

impl Components {
    fn refer<T: ToSchema>(&mut self) -> Value {
        self.component::<T>()
    }

    /// Keeps the schemas of a type and of all it is made of.
    fn component<T: ToSchema>(&mut self) -> Value {
        let name = T::name().into_owned();
        if !self.0.contains_key(&name) {
            let mut found = vec![(name.clone(), T::schema())];
            T::schemas(&mut found);
            for (name, schema) in found {
                // A schema that cannot be written accepts nothing, and every test of the document says so.
                let schema = serde_json::to_value(schema).unwrap_or(Value::Bool(false));
                self.0.entry(name).or_insert(schema);
            }
        }
        json!({"$ref": format!("#/components/schemas/{name}")})
    }

    fn refer_signed<T: ToSchema>(&mut self) -> Value {
        let (body, signature) = (self.component::<T>(), self.component::<NodeSignature>());
        // As the derived schemas call a signed message inside of another one.
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

/// The whole document.
#[must_use]
pub fn openapi() -> Value {
    let mut all = Components::default();
    let mut paths: BTreeMap<&str, Map<String, Value>> = BTreeMap::new();
    for route in routes::all() {
        let operation = operation(&route, &mut all);
        paths.entry(route.path).or_default().insert(verb(route.verb).to_owned(), operation);
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

const DESCRIPTION: &str = "What is signed, hashed and paid is in docs/protocol.md, byte by byte. Every answer has an \
    `x-request-id`; name it to the operator. Before a request reaches a route: a path that is none is 404 \
    `NOT_FOUND`, another method 405 `METHOD_NOT_ALLOWED` with `Allow`, and a head above the operator's limit 431. \
    Numbers are read exactly: 64-bit integers need a reader that keeps them.";

const fn verb(verb: Verb) -> &'static str {
    match verb {
        Verb::Get => "get",
        Verb::Post => "post",
        Verb::Put => "put",
        Verb::Head => "head",
    }
}

fn operation(route: &Route, all: &mut Components) -> Value {
    let parameters: Vec<Value> = path_parameters(route.path, all)
        .into_iter()
        .chain(route.query.iter().map(|q| q.json(all)))
        .collect();
    let name: String =
        route.path.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    let mut operation = json!({
        "operationId": format!("{}{name}", verb(route.verb)),
        "summary": route.what,
        "parameters": parameters,
        "responses": responses(route, all),
    });
    if let (Some(body), Value::Object(operation)) = (request_body(route, all), &mut operation) {
        operation.insert("requestBody".to_owned(), body);
    }
    operation
}

/// The parts of a path that vary. Each has the name of what it is.
fn path_parameters(path: &str, all: &mut Components) -> Vec<Value> {
    let names = path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let parameter = |name: &str| {
        let schema = match name {
            "id" => all.component::<florin_protocol::TaskId>(),
            "round" => all.component::<florin_protocol::Round>(),
            "address" => all.component::<florin_protocol::Address>(),
            _ => all.component::<florin_protocol::Digest>(),
        };
        json!({"name": name, "in": "path", "required": true, "schema": schema})
    };
    names.map(parameter).collect()
}

fn request_body(route: &Route, all: &mut Components) -> Option<Value> {
    let (media, schema, what) = match &route.takes {
        Body::Nothing => return None,
        Body::Json(refer, max) | Body::Signed(refer, max) => {
            (JSON, refer(all), format!("at most {max} bytes"))
        }
        Body::Bytes(how_many) => (BYTES, json!({}), (*how_many).to_owned()),
    };
    // What is there already need not come again: then nobody looks at the body.
    let required = route.verb != Verb::Put;
    Some(json!({"required": required, "description": what, "content": {media: {"schema": schema}}}))
}

fn responses(route: &Route, all: &mut Components) -> Value {
    let mut responses = Map::new();
    for answer in &route.answers {
        responses.insert(answer.status.to_string(), success(answer, all));
    }
    // Any route is asked too often, and any can find that something broke on our side.
    let codes: BTreeSet<Code> = route
        .refuses
        .iter()
        .copied()
        .chain([Code::RateLimited, Code::TooLarge, Code::Internal])
        .collect();
    let mut by_status: BTreeMap<u16, Vec<&str>> = BTreeMap::new();
    for code in codes {
        by_status.entry(status(code).as_u16()).or_default().push(code.as_str());
    }
    for (status, codes) in by_status {
        responses.insert(status.to_string(), refusal(status, &codes, all));
    }
    if route.verb == Verb::Head {
        // An answer to HEAD has no body, whatever its headers say.
        for response in responses.values_mut().filter_map(Value::as_object_mut) {
            response.remove("content");
        }
    }
    Value::Object(responses)
}

fn success(answer: &Answer, all: &mut Components) -> Value {
    let content = match answer.form {
        Form::Nothing => None,
        Form::Text => Some((TEXT, json!({"type": "string"}))),
        Form::Bytes => Some((BYTES, json!({}))),
        Form::Anything => Some((JSON, json!({"type": "object"}))),
        Form::Json(refer) => Some((JSON, refer(all))),
        Form::List(refer) => Some((JSON, json!({"type": "array", "items": refer(all)}))),
    };
    let mut response =
        json!({"description": answer.what, "headers": {"x-request-id": id_header()}});
    if let (Some((media, schema)), Value::Object(response)) = (content, &mut response) {
        response.insert("content".to_owned(), json!({media: {"schema": schema}}));
    }
    response
}

fn refusal(status: u16, codes: &[&str], all: &mut Components) -> Value {
    let rejection = all.component::<Rejection>();
    let mut headers = json!({"x-request-id": id_header()});
    if let (429 | 503, Value::Object(headers)) = (status, &mut headers) {
        let after =
            json!({"required": true, "description": "seconds", "schema": {"type": "string"}});
        headers.insert("retry-after".to_owned(), after);
    }
    json!({
        "description": format!("refused: {}", codes.join(", ")),
        "headers": headers,
        "content": {JSON: {"schema": {
            "allOf": [rejection],
            "properties": {"code": {"enum": codes}, "request_id": {"type": "string"}},
            "required": ["request_id"],
        }}},
    })
}

fn id_header() -> Value {
    json!({"required": true, "description": "names this request to the operator", "schema": {"type": "string"}})
}

/// The document, as everybody gets it.
pub(super) async fn serve() -> Response {
    static TEXT: OnceLock<String> = OnceLock::new();
    let text = TEXT.get_or_init(|| openapi().to_string());
    ([(header::CONTENT_TYPE, JSON)], text.as_str()).into_response()
}

// What `wait_ms` says of itself.
const _: () = assert!(WAIT_MS_MAX == 30_000);
