//! Tables, amounts and paragraphs as text and as HTML.

use super::*;

fn amount(text: &str) -> Amount {
    text.parse().unwrap()
}

#[test]
fn amounts_are_short_in_tables_and_exact_in_json() {
    for (text, shown) in [
        ("0", "0.0000"),
        ("12.5", "12.5000"),
        ("1234567.123456", "1,234,567.1234"),
        ("0.00001", "<0.0001"),
    ] {
        assert_eq!(fln(amount(text)), shown);
    }
    assert_eq!(units(amount("0.5")), "500000000000000000");
    assert_eq!(share(amount("1"), amount("8")), "12.5 %");
    assert_eq!(share(amount("1"), Amount::ZERO), "–");
    assert_eq!(ether(1_234_567_000_000_000_001), "1.234568");
    assert_eq!(ether(0), "0.000000");
}

#[test]
fn numbers_are_right_aligned_and_words_left_aligned() {
    let mut table = TextTable::new(&["who", ">rows"]);
    table.row(["ann".into(), 5.into()]);
    table.row(["b".into(), 1_234.into()]);
    let text = anstream::adapter::strip_str(&table.render(None)).to_string();
    assert_eq!(text, "who  rows\n───  ────\nann     5\nb    1234\n");
}

#[test]
fn a_table_fits_the_width_of_the_terminal() {
    let mut table = TextTable::new(&["name", ">rows", "remark"]);
    let remark = "first line of a remark, and a path /some/where/deep/inside/a/folder/file";
    table.row(["ann".into(), 1_234.into(), remark.into()]);
    table.row(["ben".into(), 5.into(), "short".into()]);
    let render = |limit| anstream::adapter::strip_str(&table.render(limit)).to_string();
    assert_eq!(render(Some(100)), render(None), "a table that fits is not changed");
    let indented = |width: usize, text: &str| format!("{:width$}{text}", "");
    let wrapped = [
        "name  rows  remark",
        "────  ────  ────────────────────────────",
        "ann   1234  first line of a remark, and",
        &indented(12, "a path"),
        &indented(12, "/some/where/deep/inside/a/fo"),
        &indented(12, "lder/file"),
        "ben      5  short",
        "",
    ];
    assert_eq!(render(Some(40)), wrapped.join("\n"));
    let records = [
        "name    ann",
        "rows    1234",
        "remark  first line of a",
        &indented(8, "remark, and a path"),
        &indented(8, "/some/where/deep/insid"),
        &indented(8, "e/a/folder/file"),
        "",
        "name    ben",
        "rows    5",
        "remark  short",
        "",
    ];
    assert_eq!(render(Some(30)), records.join("\n"));
}

#[test]
fn long_titles_are_wrapped_before_a_table_becomes_a_list() {
    let mut table = TextTable::new(&["name", ">score, nats", ">bond left, FLN"]);
    table.row(["ann".into(), "0.1777".into(), "7.3000".into()]);
    table.row(["the provider".into(), "".into(), "25.7000".into()]);
    let render = |limit| anstream::adapter::strip_str(&table.render(Some(limit))).to_string();
    let wrapped = [
        "name          score,     bond",
        "                nats    left,",
        "                          FLN",
        "────────────  ──────  ───────",
        "ann           0.1777   7.3000",
        "the provider          25.7000",
        "",
    ];
    assert_eq!(render(29), wrapped.join("\n"));
    assert!(render(24).ends_with("name            the provider\nbond left, FLN  25.7000\n"));
}

#[test]
fn a_column_of_short_words_becomes_narrow() {
    let mut table = TextTable::new(&[">round", "outcome"]);
    table.row([1.into(), "void: no improvement".into()]);
    let text = anstream::adapter::strip_str(&table.render(Some(18))).to_string();
    let wrapped = ["round  outcome", "─────  ───────────", "    1  void: no"];
    assert_eq!(text, format!("{}\n       improvement\n", wrapped.join("\n")));
}

#[test]
fn the_parts_of_a_line_stay_whole() {
    let parts = ["round 1", "loss 2 → 1", "8 updates"].map(str::to_owned);
    assert_eq!(render_parts(&parts, 32), "round 1   loss 2 → 1   8 updates");
    assert_eq!(render_parts(&parts, 31), "round 1   loss 2 → 1\n          8 updates");
    assert_eq!(render_parts(&[], 31), "");
}

#[test]
fn colours_have_no_width() {
    let text = format!("one {BAD}two{BAD:#} six");
    assert_eq!(visible_width(&text), 11);
    assert_eq!(wrap(&text, 11), [text.as_str()]);
    assert_eq!(wrap(&text, 10), [format!("one {BAD}two{BAD:#}"), "six".to_owned()]);
}

#[test]
fn a_paragraph_is_wrapped_behind_its_prefix() {
    let render = |limit| {
        let text = render_paragraph(
            &Cell::styled("ann: ", DIM),
            "one two three four five\nsix",
            BAD,
            limit,
        );
        anstream::adapter::strip_str(&text).to_string()
    };
    assert_eq!(render(None), "ann: one two three four five\n     six\n");
    assert_eq!(render(Some(26)), "ann: one two three four\n     five\n     six\n");
}

#[test]
fn text_is_wrapped_at_spaces_and_long_words_are_cut() {
    assert_eq!(wrap("", 5), [""]);
    assert_eq!(wrap("one two", 7), ["one two"]);
    assert_eq!(wrap("one two", 3), ["one", "two"]);
    assert_eq!(wrap("über öl", 4), ["über", "öl"]);
    assert_eq!(wrap("abcdefgh i", 3), ["abc", "def", "gh", "i"]);
}

#[test]
fn ticks_are_printed_as_dates() {
    assert_eq!(date(Timestamp(0)), "1970-01-01 00:00 UTC");
    assert_eq!(date(Timestamp(1_709_210_096_000)), "2024-02-29 12:34 UTC");
    assert_eq!(moment(Timestamp(1_709_210_096_999)), "2024-02-29 12:34:56 UTC");
    assert_eq!(moment(Timestamp(60_000)), "1970-01-01 00:01:00 UTC");
}

#[test]
fn a_table_is_html_with_escaped_cells() {
    let mut table = TextTable::new(&["name", ">leases"]);
    table.row(["<b>".into(), Cell::styled("1,000", BAD)]);
    let html = table.html();
    assert!(html.contains("<th>name</th><th class=\"n\">leases</th>"), "{html}");
    assert!(html.contains("<td>&lt;b&gt;</td><td class=\"n\">1,000</td>"), "{html}");
}
