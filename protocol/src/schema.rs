//! JSON schemas of the types whose JSON form is a string. The derived schemas of all other types
//! refer to them.
//!
//! Behind the feature `schema`, for programs that describe the HTTP interface. Participants and
//! auditors do not need it.

use std::borrow::Cow;

use utoipa::openapi::schema::{ObjectBuilder, Schema, SchemaType, Type};
use utoipa::openapi::{RefOr, SchemaFormat};
use utoipa::{PartialSchema, ToSchema};

use crate::amount::Amount;
use crate::decimal_float::DecimalFloat;
use crate::error_code::ErrorCode;
use crate::id::{Address, Digest, NodeKey, SettlementId, TaskId};
use crate::micro::Micro;
use crate::signature::{NodeSignature, WalletSignature};

macro_rules! text_schema {
    ($name:ident, $format:literal, $pattern:literal, $what:literal) => {
        impl PartialSchema for $name {
            fn schema() -> RefOr<Schema> {
                let text = ObjectBuilder::new()
                    .schema_type(SchemaType::Type(Type::String))
                    .format(Some(SchemaFormat::Custom($format.to_owned())))
                    .pattern(Some($pattern))
                    .description(Some($what));
                RefOr::T(Schema::Object(text.build()))
            }
        }
        impl ToSchema for $name {
            fn name() -> Cow<'static, str> {
                Cow::Borrowed(stringify!($name))
            }
        }
    };
}

text_schema!(Digest, "hex", "^(0x)?[0-9a-fA-F]{64}$", "A BLAKE3 digest: 32 bytes in hexadecimal.");
text_schema!(
    TaskId,
    "hex",
    "^(0x)?[0-9a-fA-F]{64}$",
    "The digest of a task specification: the task's id."
);
text_schema!(
    SettlementId,
    "hex",
    "^(0x)?[0-9a-fA-F]{64}$",
    "The id of one settlement: 32 bytes in hexadecimal."
);
text_schema!(
    NodeKey,
    "hex",
    "^(0x)?[0-9a-fA-F]{64}$",
    "An ed25519 public key: 32 bytes in hexadecimal."
);
text_schema!(
    Address,
    "eip55",
    "^(0x)?[0-9a-fA-F]{40}$",
    "An account. Mixed case must match the EIP-55 checksum; all responses use it."
);
text_schema!(NodeSignature, "hex", "^(0x)?[0-9a-fA-F]{128}$", "An ed25519 signature, 64 bytes.");
text_schema!(
    WalletSignature,
    "hex",
    "^(0x)?[0-9a-fA-F]{130}$",
    "A secp256k1 signature, 65 bytes: r, s (low), v = 27 or 28."
);
text_schema!(
    Amount,
    "decimal",
    "^[0-9]{1,21}(\\.[0-9]{1,18})?$",
    "Florins as a decimal string with at most 18 places, at most 2^128 - 1 base units."
);
text_schema!(
    DecimalFloat,
    "decimal",
    "^-?[0-9]{1,25}(\\.[0-9]{1,25})?(e-?[0-9]{1,2})?$",
    "A decimal number as a string, with at most 18 digits."
);
text_schema!(
    Micro,
    "decimal",
    "^[0-9]{1,13}(\\.[0-9]{1,6})?$",
    "A decimal number as a string, at most 6 places."
);

impl PartialSchema for ErrorCode {
    fn schema() -> RefOr<Schema> {
        let text = ObjectBuilder::new()
            .schema_type(SchemaType::Type(Type::String))
            .enum_values(Some(Self::ALL.iter().map(|code| code.as_str())))
            .description(Some("Error code of a rejection. The meaning of a code never changes."));
        RefOr::T(Schema::Object(text.build()))
    }
}
impl ToSchema for ErrorCode {
    fn name() -> Cow<'static, str> {
        Cow::Borrowed("ErrorCode")
    }
}
