//! Collects the borsh layout and the JSON form of messages and of all types in them.

use std::collections::{BTreeMap, BTreeSet};

use borsh::BorshSchema;
use borsh::schema::{Declaration, Definition, Fields};
use florin_protocol::Canonical;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

/// Types whose JSON form is a decimal number as text, and the number of its places.
const DECIMALS: [(&str, u32); 2] = [("Amount", 18), ("Micro", 6)];
/// The type whose JSON form is a decimal number with an exponent, as text.
const DECIMAL_FLOAT: &str = "DecimalFloat";

#[derive(Default)]
pub(crate) struct Catalogue {
    pub(crate) messages: Vec<Value>,
    layouts: BTreeMap<Declaration, Definition>,
    json_forms: BTreeMap<String, Value>,
}

impl Catalogue {
    /// Adds a message and all types in it.
    pub(crate) fn message<T: Canonical + BorshSchema + ToSchema>(&mut self, signed_by: &str) {
        self.messages.push(json!({
            "type": T::declaration(),
            "kind": T::DOMAIN.strip_prefix("florin v1 ").unwrap(),
            "digest_context": T::DOMAIN,
            "signed_by": signed_by,
        }));
        T::add_definitions_recursively(&mut self.layouts);
        self.json_form::<T>();
    }

    /// Adds the JSON form of a type and of the types in it.
    pub(crate) fn json_form<T: ToSchema>(&mut self) {
        let mut forms = vec![(T::name().into_owned(), T::schema())];
        T::schemas(&mut forms);
        for (name, form) in forms {
            self.json_forms.insert(name, serde_json::to_value(form).unwrap());
        }
    }

    /// Every named type. Numbers, text, lists, maps, options and tuples are expressions in fields.
    pub(crate) fn types(&self) -> Map<String, Value> {
        let contents = self.variant_contents();
        let named = self.layouts.iter().filter(|(name, _)| !contents.contains(name.as_str()));
        named
            .filter_map(|(name, layout)| Some((name.clone(), self.type_of(name, layout)?)))
            .collect()
    }

    /// The declarations that borsh invents for the contents of an enum's variants.
    fn variant_contents(&self) -> BTreeSet<&str> {
        let enums = self.layouts.iter().filter_map(|(name, layout)| match layout {
            Definition::Enum { variants, .. } if !name.starts_with("Option<") => Some(variants),
            _ => None,
        });
        enums.flatten().map(|(_, _, content)| content.as_str()).collect()
    }

    fn type_of(&self, name: &str, layout: &Definition) -> Option<Value> {
        match layout {
            Definition::Struct { fields } => Some(struct_type(name, fields)),
            Definition::Enum { tag_width, variants } if !name.starts_with("Option<") => {
                assert_eq!(*tag_width, 1, "{name}: an index has one byte");
                let form = self.json_forms.get(name);
                let form = form.unwrap_or_else(|| panic!("{name} has no JSON schema"));
                let (tag, names) = json_names(name, form);
                assert_eq!(names.len(), variants.len(), "{name}");
                let variants =
                    variants.iter().zip(names).map(|((index, _, content), json_name)| {
                        self.variant(*index, &json_name, content)
                    });
                let variants: Vec<Value> = variants.collect();
                Some(json!({"kind": "enum", "json_tag": tag, "variants": variants}))
            }
            Definition::Primitive(_)
            | Definition::Sequence { .. }
            | Definition::Tuple { .. }
            | Definition::Enum { .. } => None,
        }
    }

    fn variant(&self, index: i64, name: &str, content: &str) -> Value {
        let mut variant = json!({"index": index, "name": name});
        match self.layouts.get(content) {
            Some(Definition::Struct { fields: Fields::NamedFields(fields) }) => {
                variant["fields"] = json!(fields);
            }
            Some(Definition::Struct { fields: Fields::UnnamedFields(types) }) => match &types[..] {
                [only] => variant["content"] = json!(only),
                _ => {
                    panic!("{content}: a variant with several unnamed fields has no JSON form here")
                }
            },
            Some(Definition::Struct { fields: Fields::Empty }) => {}
            other => panic!("{content}: {other:?} is not the content of a variant"),
        }
        variant
    }
}

fn struct_type(name: &str, fields: &Fields) -> Value {
    let decimal = DECIMALS.iter().find(|(decimal, _)| *decimal == name);
    match (fields, decimal) {
        (Fields::UnnamedFields(types), Some((_, places))) => {
            json!({"kind": "decimal", "type": types[0], "places": places})
        }
        (Fields::UnnamedFields(types), None) => match byte_length(&types[0]) {
            Some(length) => json!({"kind": "bytes", "length": length}),
            None => json!({"kind": "newtype", "type": types[0]}),
        },
        (Fields::NamedFields(fields), _) => {
            let kind = if name == DECIMAL_FLOAT { "decimal_float" } else { "struct" };
            json!({"kind": kind, "fields": fields})
        }
        (Fields::Empty, _) => json!({"kind": "struct", "fields": []}),
    }
}

fn byte_length(declaration: &str) -> Option<u32> {
    declaration.strip_prefix("[u8; ")?.strip_suffix(']')?.parse().ok()
}

/// The JSON names of an enum's variants in their order, and the key of the name if the variants are
/// objects with the name in them. A variant's name is otherwise a text, or an object's only key.
fn json_names(name: &str, form: &Value) -> (Option<String>, Vec<String>) {
    let texts = |values: &Value| -> Vec<String> {
        values.as_array().unwrap().iter().map(|text| text.as_str().unwrap().to_owned()).collect()
    };
    if form["enum"].is_array() {
        return (None, texts(&form["enum"]));
    }
    let mut tag = None;
    let mut names = Vec::new();
    let variants = form["oneOf"].as_array();
    for variant in variants.unwrap_or_else(|| panic!("{name}: {form} has no variants")) {
        if variant["enum"].is_array() {
            names.extend(texts(&variant["enum"]));
            continue;
        }
        // A newtype variant of a tagged enum is a combination of its content and of the tag.
        let parts = variant["allOf"].as_array().cloned().unwrap_or_else(|| vec![variant.clone()]);
        let properties: Vec<(&String, &Value)> =
            parts.iter().filter_map(|part| part["properties"].as_object()).flatten().collect();
        let tagged = properties
            .iter()
            .find(|(_, value)| value["enum"].as_array().is_some_and(|values| values.len() == 1));
        match tagged {
            Some((key, value)) => {
                tag = Some((*key).clone());
                names.extend(texts(&value["enum"]));
            }
            None => names.push(properties[0].0.clone()),
        }
    }
    (tag, names)
}
