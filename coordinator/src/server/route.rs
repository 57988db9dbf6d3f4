//! One route, as the router and the OpenAPI document need it: method, path, handler, request,
//! responses and error codes.

use axum::routing::MethodRouter;
use florin_protocol::ErrorCode::{self, *};
use florin_protocol::Role;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::App;
use super::listings::LINKS_SIGNATURE_HEADER;
use super::openapi_schemas::{Components, SchemaRef};
use super::orders::{
    ACCOUNT_HEADER, READER_EXPIRES_HEADER, READER_HEADER, READER_SIGNATURE_HEADER, SALT_HEADER,
    SIGNATURE_HEADER,
};
use crate::config::WAIT_MS_MAX;

/// The method of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum HttpMethod {
    Get,
    Post,
    Put,
    Head,
}

/// One route.
pub(super) struct Route {
    pub(super) method: HttpMethod,
    pub(super) path: &'static str,
    pub(super) handler: MethodRouter<App>,
    /// One sentence for the document.
    pub(super) summary: &'static str,
    pub(super) parameters: &'static [Parameter],
    pub(super) request_body: RequestBody,
    pub(super) responses: Vec<SuccessResponse>,
    /// The route's rejection codes, beyond those of every route.
    pub(super) rejection_codes: Vec<ErrorCode>,
}

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

/// A route's response on success.
pub(super) struct SuccessResponse {
    pub(super) status: u16,
    pub(super) description: &'static str,
    pub(super) form: ResponseContent,
}

/// The content of a response.
pub(super) enum ResponseContent {
    Nothing,
    Text,
    Bytes,
    Anything,
    Json(SchemaRef),
    List(SchemaRef),
    /// Server-sent events, whose data are values of this type by task.
    Events(SchemaRef),
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

    pub(super) fn events<T: ToSchema>() -> Self {
        let what = "`event: tasks`, whose data is a JSON object with a value for each task";
        Self::new(200, what, ResponseContent::Events(Components::schema_ref::<T>))
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
    pub(super) const FROM: Self = Self::Number { name: "from", what: "the first round; default 1" };
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

    pub(super) const RUN: Self =
        Self::Number { name: "run", what: "the run of the client's last reading; default 0" };
    pub(super) const CHANGES_AFTER: Self =
        Self::Number { name: "after", what: "`last` of the client's last reading; default 0" };
    pub(super) const RECORDS_AFTER: Self =
        Self::Number { name: "after", what: "number of records that the client has; default 0" };
    pub(super) const STATE_ACCOUNT: Self = Self::Header {
        name: ACCOUNT_HEADER,
        what: "the provider of the lease; required",
        pattern: "^0x[0-9a-fA-F]{40}$",
    };
    pub(super) const CHECKPOINT: [Self; 3] = [
        Self::STATE_ACCOUNT,
        Self::Header {
            name: SALT_HEADER,
            what: "the salt of the segment's leaf; required",
            pattern: "^[0-9a-f]{64}$",
        },
        Self::Header {
            name: SIGNATURE_HEADER,
            what: "its wallet's signature of LeaseCheckpoint(bytes32 order,address account,bytes32 state,bytes32 salt); required",
            pattern: "^[0-9a-f]{130}$",
        },
    ];
    pub(super) const LINKS_SIGNATURE: Self = Self::Header {
        name: LINKS_SIGNATURE_HEADER,
        what: "its provider's signature of ListingLinks(bytes32 listing,address account,bytes32 root); required",
        pattern: "^[0-9a-f]{130}$",
    };
    pub(super) const READER: [Self; 3] = [
        Self::Header {
            name: READER_HEADER,
            what: "the account that reads; required for an order that is not public",
            pattern: "^0x[0-9a-fA-F]{40}$",
        },
        Self::Header {
            name: READER_EXPIRES_HEADER,
            what: "until when the request is valid, in milliseconds; at most ten minutes ahead",
            pattern: "^[0-9]{1,19}$",
        },
        Self::Header {
            name: READER_SIGNATURE_HEADER,
            what: "its wallet's signature of LeaseRead(bytes32 order,address account,bytes32 data,uint64 expires)",
            pattern: "^[0-9a-f]{130}$",
        },
    ];
    pub(super) const STATE_SIGNATURE: Self = Self::Header {
        name: SIGNATURE_HEADER,
        what: "its wallet's signature of LeaseState(bytes32 order,address account,bytes32 state); required",
        pattern: "^[0-9a-f]{130}$",
    };

    pub(super) fn json(&self, all: &mut Components) -> Value {
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

pub(super) const JSON: &str = "application/json";
pub(super) const BYTES: &str = "application/octet-stream";
pub(super) const TEXT: &str = "text/plain; charset=utf-8";

/// Rejection codes of every route that takes a signed message.
pub(super) const SIGNED: [ErrorCode; 5] =
    [InvalidSignature, WeakKey, WrongMarket, NotRegistered, RateLimited];
/// Rejection codes of every route that takes a body.
const BODY: [ErrorCode; 4] = [Malformed, Truncated, TooLarge, WrongContentType];

impl Route {
    fn new(
        method: HttpMethod,
        path: &'static str,
        handler: MethodRouter<App>,
        summary: &'static str,
    ) -> Self {
        // A path parameter can be malformed, and an empty one makes another path, which is not
        // found.
        let rejection_codes =
            if path.contains('{') { vec![Malformed, NotFound] } else { Vec::new() };
        let (request_body, responses) = (RequestBody::Nothing, Vec::new());
        Self {
            method,
            path,
            handler,
            summary,
            parameters: &[],
            request_body,
            responses,
            rejection_codes,
        }
    }

    pub(super) fn get(path: &'static str, handler: MethodRouter<App>, what: &'static str) -> Self {
        Self::new(HttpMethod::Get, path, handler, what)
    }

    pub(super) fn post(path: &'static str, handler: MethodRouter<App>, what: &'static str) -> Self {
        Self::new(HttpMethod::Post, path, handler, what)
    }

    pub(super) fn put(path: &'static str, handler: MethodRouter<App>, what: &'static str) -> Self {
        Self::new(HttpMethod::Put, path, handler, what)
    }

    pub(super) fn head(path: &'static str, handler: MethodRouter<App>, what: &'static str) -> Self {
        Self::new(HttpMethod::Head, path, handler, what)
    }

    pub(super) fn with_parameters(self, query: &'static [Parameter]) -> Self {
        Self { parameters: query, ..self }.with_rejections(&[Malformed])
    }

    pub(super) fn with_body(self, takes: RequestBody) -> Self {
        let refuses: &[ErrorCode] = match takes {
            RequestBody::Signed(..) => &SIGNED,
            _ => &[],
        };
        Self { request_body: takes, ..self }.with_rejections(&BODY).with_rejections(refuses)
    }

    pub(super) fn with_response(mut self, answer: SuccessResponse) -> Self {
        self.responses.push(answer);
        self
    }

    pub(super) fn with_rejections(mut self, codes: &[ErrorCode]) -> Self {
        self.rejection_codes.extend(codes);
        self
    }
}

// The limit in the description of `wait_ms`.
const _: () = assert!(WAIT_MS_MAX == 30_000);
