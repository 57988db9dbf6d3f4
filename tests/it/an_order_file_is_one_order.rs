//! One order file is one order, and one escrow: behind an edit that is undone, as a copy, without its record, and by
//! another wallet.

use florin_protocol::Digest;

use crate::support::{On, TestMarket, TestPlan, florin};

/// A model of three classes on rows of 64 numbers.
const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/learning/data/graphs/vit.pt2");
/// The second renter.
const OTHER: &str = "second";

/// A market whose coordinator accepts a referee, and an order file, whose longest step is measured.
fn open() -> (TestMarket, String) {
    let mut plan = TestPlan::honest(On::Embedded, 1);
    plan.others = vec![OTHER, "arbiter"];
    let market = TestMarket::open(plan);
    let columns: Vec<String> = (0..64).map(|column| format!("x{column}")).collect();
    let mut rows = format!("{},label\n", columns.join(","));
    for row in 0..12_u32 {
        let number = |column: u32| (row * 64 + column).wrapping_mul(2_654_435_761) >> 20;
        let numbers: Vec<String> = (0..64).map(number).map(|x| x.to_string()).collect();
        rows += &format!("{},{}\n", numbers.join(","), row % 3);
    }
    std::fs::write(market.file("rows.csv"), rows).unwrap();
    let file = market.file("order.toml");
    let (data, referee) =
        (format!("csv:{}#label", market.file("rows.csv")), market.account("arbiter").to_string());
    let terms = ["--price", "2", "--segments", "2", "--referee", &referee];
    let new = ["rent", "new", &file, "--model", MODEL, "--data", &data, "--json"];
    let written = florin(&[&new[..], &terms].concat()).expect(0).json();
    assert!(written["notes"].to_string().contains("All accounts"), "{written}");
    (market, file)
}

/// Orders a file. Returns the order and its warnings.
fn order(market: &TestMarket, name: &str, file: &str) -> (Digest, String) {
    let placed = market.run_command_as(name, &["rent", "order", file, "--yes", "--json"]).expect(0);
    let placed = placed.json();
    (placed["order"].as_str().unwrap().parse().unwrap(), placed["warnings"].to_string())
}

#[test]
fn an_order_file_locks_one_escrow() {
    let (market, file) = open();
    let left = || market.ledger().balance(market.account("buyer")).unwrap();
    let before = left();
    let (first, warnings) = order(&market, "buyer", &file);
    assert_eq!(warnings, "[]");
    let after = left();
    assert!(after < before);
    // A copy of the file, also without the record of the order.
    let text = std::fs::read_to_string(&file).unwrap();
    let copy = market.file("copy.toml");
    std::fs::write(&copy, &text).unwrap();
    assert_eq!((order(&market, "buyer", &copy).0, left()), (first, after));

    // An edit is another order, which is warned of; undone, it is the first one again.
    std::fs::write(&file, text.replace("price_max = \"2\"", "price_max = \"3\"")).unwrap();
    let (second, warnings) = order(&market, "buyer", &file);
    assert_ne!(second, first);
    assert!(
        warnings.contains("[ANOTHER_ORDER]") && warnings.contains(&first.short()),
        "{warnings}"
    );
    let both = left();
    assert!(both < after);
    std::fs::write(&file, &text).unwrap();
    assert_eq!((order(&market, "buyer", &file), left()), ((first, "[]".to_owned()), both));
    // Another nonce is another order, and no mistake.
    let nonce = text.lines().find(|line| line.starts_with("nonce = ")).unwrap();
    std::fs::write(&file, text.replace(nonce, "nonce = 5")).unwrap();
    let (third, warnings) = order(&market, "buyer", &file);
    assert!(third != first && warnings == "[]", "{warnings}");
    std::fs::write(&file, &text).unwrap();

    // Another wallet has an order of its own, and does not replace the record of the first.
    let all = left();
    let (of_other, warnings) = order(&market, OTHER, &file);
    assert!(![first, second, third].contains(&of_other) && warnings == "[]", "{warnings}");
    assert_eq!((order(&market, "buyer", &file).0, left()), (first, all));
    assert_eq!(order(&market, OTHER, &file).0, of_other);
    assert_eq!(market.client().orders().unwrap().len(), 4);
    std::fs::write(market.file("order.order.json"), "{}").unwrap();
    let damaged = ["rent", "order", &file, "--yes", "--json"];
    market.run_command_as("buyer", &damaged).refused(2, "ORDER_RECORD_INVALID");
}

#[test]
fn a_check_states_the_readers_and_doubts_terms() {
    let (_market, file) = open();
    let check = || florin(&["rent", "check", &file, "--json"]).expect(0).json();
    let sound = check();
    assert_eq!((&sound["data_class"], &sound["listed"]), (&"public".into(), &false.into()));
    assert!(sound["readers"].as_str().unwrap().contains("All accounts"), "{sound}");
    assert_eq!(sound["warnings"], serde_json::json!([]));
    let text = std::fs::read_to_string(&file).unwrap();
    let text = text.replace("[order]\n", "[order]\nstep_max = \"1 us\"\n");
    let text = text.replace("[windows]\n", "[windows]\nbid = \"20 s\"\n");
    std::fs::write(&file, text.replace("challenge = \"10 min\"", "challenge = \"9 min\"")).unwrap();
    let doubted = check()["warnings"].to_string();
    for code in ["[STEP_TOO_SHORT]", "[WINDOWS_TOO_SHORT]", "[CHALLENGE_TOO_SHORT]"] {
        assert!(doubted.contains(code), "no {code} in {doubted}");
    }
}
