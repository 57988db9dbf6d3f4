//! JSON bodies in exactly one form. serde also accepts a structure as a list of its fields, and
//! ignores fields that it does not know; a client that sends either has a mistake, which would
//! otherwise remain undetected.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Parses a body whose structures are objects without unknown fields.
///
/// # Errors
/// The position and the reason, for the sender.
pub(crate) fn parse_json<T: Serialize + DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    let parsed: T = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    let sent: Value = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    let form = serde_json::to_value(&parsed).map_err(|error| error.to_string())?;
    check_form(&sent, &form, "")?;
    Ok(parsed)
}

/// Compares the shapes of two values: objects with their keys, and lists. Texts and numbers may
/// differ, since an address has several spellings. A field that was left out is null.
fn check_form(sent: &Value, form: &Value, at: &str) -> Result<(), String> {
    match (sent, form) {
        (Value::Object(sent), Value::Object(form)) => {
            for (key, value) in sent {
                let at = format!("{at}/{key}");
                let known = form.get(key).ok_or_else(|| {
                    let known: Vec<&str> = form.keys().map(String::as_str).collect();
                    format!("unknown field at {at}; the fields here are {}", known.join(", "))
                })?;
                check_form(value, known, &at)?;
            }
            Ok(())
        }
        (Value::Array(sent), Value::Array(form)) => {
            let mut items = sent.iter().zip(form).enumerate();
            items.try_for_each(|(index, (sent, form))| {
                check_form(sent, form, &format!("{at}/{index}"))
            })
        }
        (Value::Array(_), Value::Object(form)) => {
            let known: Vec<&str> = form.keys().map(String::as_str).collect();
            let at = if at.is_empty() { "the top" } else { at };
            Err(format!("a list at {at} instead of an object with {}", known.join(", ")))
        }
        (Value::Object(_) | Value::Array(_), _) => {
            Err(format!("a list or an object at {at} instead of a text or a number"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use florin_ledger::rpc::LedgerRequest;
    use florin_protocol::{Registration, TaskSpec};
    use serde_json::json;

    use super::*;

    fn parse<T: Serialize + DeserializeOwned>(value: &Value) -> Result<T, String> {
        parse_json(value.to_string().as_bytes())
    }

    #[test]
    fn a_list_in_the_place_of_an_object_is_refused() {
        let account = "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed";
        parse::<LedgerRequest>(&json!({"nonce": {"account": account}})).unwrap();
        parse::<LedgerRequest>(&json!({"nonce": {"account": account.to_lowercase()}})).unwrap();
        let error = parse::<LedgerRequest>(&json!({"nonce": [account]})).unwrap_err();
        assert_eq!(error, "a list at /nonce instead of an object with account");
        let spec = TaskSpec::example();
        let mut body = json!(spec);
        assert_eq!(parse::<TaskSpec>(&body), Ok(spec.clone()));
        body["market"] = json!([1, spec.market.genesis]);
        assert!(parse::<TaskSpec>(&body).unwrap_err().contains("/market"));
        let parts: Vec<Value> =
            json!(spec.holdout).as_object().unwrap().values().cloned().collect();
        body["market"] = json!(spec.market);
        body["holdout"] =
            json!([spec.holdout.root, spec.holdout.rows, spec.holdout.rows_per_round]);
        assert_eq!(parts.len(), 3);
        assert!(parse::<TaskSpec>(&body).is_err());
    }

    #[test]
    fn unknown_fields_are_refused_at_any_depth() {
        let registration = json!({
            "market": {"chain": 1, "genesis": "11".repeat(32)},
            "wallet": "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed",
            "node_key": "22".repeat(32),
            "role": "participant",
            "expires": 5,
            "wallet_signature": "33".repeat(65),
            "node_signature": "44".repeat(64),
        });
        parse::<Registration>(&registration).unwrap();
        let mut more = registration.clone();
        more["nick"] = json!("x");
        assert!(parse::<Registration>(&more).unwrap_err().contains("unknown field at /nick"));
        let mut deeper = registration;
        deeper["market"]["name"] = json!("x");
        let error = parse::<Registration>(&deeper).unwrap_err();
        assert!(error.contains("/market/name; the fields here are chain, genesis"), "{error}");
    }
}
