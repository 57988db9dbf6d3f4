//! The schemas of the OpenAPI document, derived from the message types.

use std::collections::BTreeMap;

use florin_protocol::{NodeSignature, Signed};
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::openapi_text::rewrite_descriptions;

/// The document's schemas by name.
#[derive(Default)]
pub(super) struct Components(pub(super) BTreeMap<String, Value>);

/// Adds a schema to the document and returns a reference to it.
pub(super) type SchemaRef = fn(&mut Components) -> Value;

impl Components {
    pub(super) fn schema_ref<T: ToSchema>(&mut self) -> Value {
        self.add_schema::<T>()
    }

    /// Adds the schemas of a type and of its parts; returns a reference to the type's schema.
    pub(super) fn add_schema<T: ToSchema>(&mut self) -> Value {
        let name = T::name().into_owned();
        if !self.0.contains_key(&name) {
            let mut found = vec![(name.clone(), T::schema())];
            T::schemas(&mut found);
            for (name, schema) in found {
                // A schema that cannot be serialised accepts nothing; every test of the document
                // then fails.
                let mut schema = serde_json::to_value(schema).unwrap_or(Value::Bool(false));
                rewrite_descriptions(&mut schema);
                self.0.entry(name).or_insert(schema);
            }
        }
        json!({"$ref": format!("#/components/schemas/{name}")})
    }

    pub(super) fn signed_schema_ref<T: ToSchema>(&mut self) -> Value {
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
