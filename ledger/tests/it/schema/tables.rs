//! The tables of `docs/protocol.md`, as Markdown.

use serde_json::Value;

/// The text with the contents of its marked regions replaced by the tables.
pub(crate) fn with_tables(text: &str, schema: &Value) -> String {
    let regions: [(&str, String); 6] = [
        ("messages", messages(schema)),
        ("structures", structures(schema)),
        ("enums", enums(schema)),
        ("forms", forms(schema)),
        ("actions", actions(schema)),
        ("constants", constants(schema)),
    ];
    regions.iter().fold(text.to_owned(), |text, (name, table)| {
        let (begin, end) = (format!("<!-- schema: {name} -->\n"), "<!-- end of schema -->");
        let (before, rest) = text.split_once(&begin).unwrap_or_else(|| {
            panic!("docs/protocol.md has no region {begin:?}");
        });
        let (_, after) = rest.split_once(end).expect("a region ends");
        format!("{before}{begin}\n{table}\n{end}{after}")
    })
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap()
}

/// A table with a header row.
fn table(header: &str, rows: impl IntoIterator<Item = String>) -> String {
    let columns = header.matches('|').count().saturating_sub(1);
    let mut lines = vec![header.to_owned(), format!("|{}", "---|".repeat(columns))];
    lines.extend(rows);
    lines.join("\n") + "\n"
}

/// `name type, name type`.
fn fields(list: &Value) -> String {
    let fields = list.as_array().into_iter().flatten();
    let fields = fields.map(|field| format!("{} `{}`", text(&field[0]), text(&field[1])));
    fields.collect::<Vec<_>>().join(", ")
}

fn messages(schema: &Value) -> String {
    let rows = schema["messages"].as_array().unwrap().iter().map(|message| {
        let (kind, name) = (text(&message["kind"]), text(&message["type"]));
        let signed_by = text(&message["signed_by"]);
        let signed_by = signed_by.split(": ").next().unwrap();
        format!(
            "| `{kind}` | `{name}` | {signed_by} | {} |",
            fields(&schema["types"][name]["fields"])
        )
    });
    table("| kind | type | signed by | fields |", rows)
}

/// The types of one kind.
fn types<'a>(
    schema: &'a Value,
    kinds: &'a [&str],
) -> impl Iterator<Item = (&'a String, &'a Value)> {
    let all = schema["types"].as_object().unwrap().iter();
    all.filter(|(_, each)| kinds.contains(&text(&each["kind"])))
}

fn structures(schema: &Value) -> String {
    let messages = schema["messages"].as_array().unwrap();
    let is_message = |name: &str| messages.iter().any(|message| text(&message["type"]) == name);
    let rows = types(schema, &["struct", "decimal_float"])
        .filter(|(name, _)| !is_message(name))
        .map(|(name, each)| format!("| `{name}` | {} |", fields(&each["fields"])));
    table("| structure | fields |", rows)
}

fn enums(schema: &Value) -> String {
    let rows =
        types(schema, &["enum"]).filter(|(name, _)| *name != "Action").map(|(name, each)| {
            let variants = each["variants"].as_array().unwrap().iter().map(|variant| {
                let content = match (&variant["fields"], &variant["content"]) {
                    (Value::Array(_), _) => format!(" {{{}}}", fields(&variant["fields"])),
                    (_, Value::String(content)) => format!(" `{content}`"),
                    _ => String::new(),
                };
                format!("{} {}{content}", variant["index"], text(&variant["name"]))
            });
            let tag = each["json_tag"].as_str().map_or("–".to_owned(), |tag| format!("`{tag}`"));
            format!("| `{name}` | {tag} | {} |", variants.collect::<Vec<_>>().join(", "))
        });
    table("| enum | key in JSON | variants: index, name, content |", rows)
}

fn forms(schema: &Value) -> String {
    let rows = types(schema, &["bytes", "decimal", "newtype"]).map(|(name, each)| {
        let (layout, json) = match text(&each["kind"]) {
            "bytes" => (format!("{} bytes", each["length"]), "hexadecimal text".to_owned()),
            "decimal" => (
                format!("`{}`, in units of 10⁻{}", text(&each["type"]), raised(&each["places"])),
                format!("decimal text, at most {} places", each["places"]),
            ),
            _ => (format!("`{}`", text(&each["type"])), format!("`{}`", text(&each["type"]))),
        };
        format!("| `{name}` | {layout} | {json} |")
    });
    table("| type | bytes | JSON |", rows)
}

fn raised(number: &Value) -> String {
    let digits = ['⁰', '¹', '²', '³', '⁴', '⁵', '⁶', '⁷', '⁸', '⁹'];
    let text = number.to_string();
    text.chars().filter_map(|digit| digits.get(digit.to_digit(10)? as usize)).collect()
}

fn actions(schema: &Value) -> String {
    let variants = schema["types"]["Action"]["variants"].as_array().unwrap();
    let rows = schema["actions"].as_array().unwrap().iter().map(|action| {
        let name = text(&action["action"]);
        let variant = variants.iter().find(|variant| text(&variant["name"]) == name).unwrap();
        let content = match &variant["content"] {
            Value::String(content) => format!("`{content}`"),
            _ => fields(&variant["fields"]),
        };
        let summary = text(&action["summary"]);
        let when = match text(&action["when"]) {
            "" => String::new(),
            when => format!(", if {when}"),
        };
        format!("| {} | `{name}`{when} | {content} | `{summary}` |", variant["index"])
    });
    table("| index | action | content | summary |", rows)
}

fn constants(schema: &Value) -> String {
    let rows = schema["constants"].as_object().unwrap().iter();
    let rows = rows.map(|(name, value)| {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        format!("| `{name}` | {value} |")
    });
    table("| constant | value |", rows)
}
