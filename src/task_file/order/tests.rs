//! A new order is accepted, and invalid files are refused with their key.

use florin_compute::{LeaseOpening, RecordedLease};
use florin_learning::DataSource;
use florin_learning::select::EngineKind;
use florin_protocol::{ChainId, Timestamp};

use super::super::{BuffersName, LossName, NewGraph};
use super::*;

/// A model of three classes on rows of 64 numbers, as `torch.export.save` wrote it.
fn archive() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("learning/data/graphs/vit.pt2")
}

/// Rows with three labels.
fn rows(folder: &Path) -> DataSource {
    let mut text: String = (0..64).map(|column| format!("x{column},")).collect();
    text.push_str("label\n");
    for row in 0..40_u32 {
        let number = |column: u32| (row * 64 + column).wrapping_mul(2_654_435_761) >> 20;
        (0..64).for_each(|column| text.push_str(&format!("{},", number(column))));
        text.push_str(&format!("{}\n", row % 3));
    }
    let file = folder.join("rows.csv");
    std::fs::write(&file, text).unwrap();
    DataSource::Csv { file, label: "label".to_owned() }
}

const REFEREE: Address = Address([2; 20]);

fn new_order(folder: &Path) -> String {
    let file = archive();
    let graph = NewGraph {
        file: &file,
        loss: LossName::CrossEntropy,
        loss_bound: None,
        trainable: &[],
        buffers: BuffersName::Refuse,
        image: None,
        tokens: None,
    };
    let price_max = "10".parse().unwrap();
    let data_class = DataClass::Public;
    let order = NewOrder {
        referee: REFEREE,
        price_max,
        data_class,
        segments: 10,
        nonce: 7,
        seed: 3,
        at_home: &[],
    };
    order_for_graph(&graph, &rows(folder), folder, &order).unwrap().0.text
}

fn from_text(text: &str, folder: &Path) -> Result<OrderDraft, Refused> {
    super::from_text(text, folder, PLAIN)
}

const PLAIN: EngineArg = EngineArg { engine: EngineKind::Reference, threads: 1 };

fn parties() -> OrderParties {
    let market = MarketId { chain: ChainId(1), genesis: Digest([3; 32]) };
    OrderParties { market, renter: Address([1; 20]) }
}

const MACHINE: ClassAndStep = ClassAndStep { class: Digest([5; 32]), step_us_max: 20_000 };

fn refused(text: &str, folder: &Path) -> (String, String) {
    let path = Path::new("order.toml");
    let error = match from_text(text, folder) {
        Err(refusal) => refusal.at(path, text).into(),
        Ok(draft) => draft.order(path, &parties(), MACHINE, None).unwrap_err(),
    };
    (crate::failure::classify(&error).0, error.to_string())
}

#[test]
fn a_new_order_is_accepted() {
    let folder = tempfile::tempdir().unwrap();
    let text = new_order(folder.path());
    let draft = from_text(&text, folder.path()).unwrap();
    // Two batches of 32 rows, ten times.
    assert_eq!((draft.job.row_count, draft.job.steps()), (40, 20));
    let order = draft.order(Path::new("order.toml"), &parties(), MACHINE, None).unwrap();
    assert_eq!((order.segments, order.steps, order.nonce), (10, 2, 7));
    assert_eq!((order.referee, order.start), (REFEREE, draft.start));
    assert_eq!(draft.challenge_ms, CHALLENGE_MS);
    let read = |digest, _| {
        Ok::<_, florin_protocol::Rejection>(draft.blob(digest).cloned().unwrap_or_default())
    };
    let training = florin_work::LeasedTraining::load(&order, &draft.job, read).unwrap();
    assert_eq!(Digest(training.initial().digest()), order.start);
}

#[test]
fn steps_of_a_segment_replace_the_number_of_segments() {
    let folder = tempfile::tempdir().unwrap();
    let text = new_order(folder.path());
    for (line, segments, steps) in [
        ("steps = 3", 7, 3),
        ("segments = 3", 3, 7),
        ("segments = 12", 10, 2),
        ("steps = 50", 1, 50),
    ] {
        let draft =
            from_text(&text.replace("segments = 10\n", &format!("{line}\n")), folder.path());
        let order = draft.unwrap().order(Path::new(""), &parties(), MACHINE, None).unwrap();
        assert_eq!((order.segments, order.steps), (segments, steps), "{line}");
    }
}

/// The renter audits private rows, under a bond that a dispute for nothing costs.
#[test]
fn the_data_class_has_terms_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let text = new_order(folder.path());
    let order = |class: &str| {
        let class = format!("data_class = \"{class}\"");
        let text = text.replacen("data_class = \"public\"", &class, 1);
        let draft = from_text(&text, folder.path()).unwrap();
        draft.order(Path::new("order.toml"), &parties(), MACHINE, None).unwrap()
    };
    let (public, buyer, private) = (order("public"), order("buyer"), order("private"));
    let deposits = buyer.deposits.clone();
    assert_eq!(ComputeOrder { data_class: DataClass::Buyer, deposits, ..public.clone() }, buyer);
    // A provider that reads the rows and stops loses more than a bond.
    let fines = [&public, &buyer, &private].map(|order| order.deposits.default_fine);
    assert!(fines[0] == public.deposits.bid_bond && fines[1] == fines[2] && fines[1] > fines[0]);
    assert_eq!(private.data_class, DataClass::Private);
    assert_eq!((public.audit.auditors, private.audit.auditors, private.audit.colluding), (2, 1, 0));
    assert!(private.deposits.audit_bond >= private.deposits.bid_bond);
    assert_eq!(private.job, public.job);
}

#[test]
fn wrong_files_are_refused_with_their_key() {
    let folder = tempfile::tempdir().unwrap();
    let text = new_order(folder.path());
    let referee = format!("referee = \"{REFEREE}\"");
    let renter = format!("referee = \"{}\"", Address([1; 20]));
    for (from, to, code, part) in [
        (
            "data_class = \"public\"",
            "data_class = \"split\"",
            "DATA_CLASS_UNSUPPORTED",
            "data_class = \"split\"",
        ),
        ("data_class = \"public\"", "", "INVALID_ORDER", "missing field `data_class`"),
        ("kind = \"graph\"", "kind = \"mlp\"", "INVALID_ORDER", "model.kind = \"mlp\""),
        ("segments = 10\n", "segments = 10\nsteps = 2\n", "INVALID_ORDER", "order.segments = 10"),
        ("segments = 10\n", "segments = 0\n", "INVALID_ORDER", "order.segments = 0"),
        (
            "virtual_workers = 8",
            "virtual_workers = 0",
            "INVALID_ORDER",
            "order.virtual_workers = 0",
        ),
        ("# stake = \"1\"", "stake = \"1\"", "INVALID_ORDER", "deposits.stake = \"1\""),
        ("# share = 0.05", "share = 0.5", "INVALID_ORDER", "audit.share = 0.5: a share"),
        ("# share = 0.05", "share = 0", "INVALID_ORDER", "audit.share = 0: a share"),
        ("# share = 0.05", "auditors = 0", "INVALID_ORDER", "audit.auditors = 0: a whole"),
        ("# share = 0.05", "colluding = 1.0", "INVALID_ORDER", "audit.colluding = 1: a share"),
        ("# answer = \"1 min\"", "answer = \"0 s\"", "INVALID_ORDER", "windows.answer = \"0 ms\""),
        ("price_max = \"10\"", "price_max = \"0\"", "INVALID_ORDER", "order.price_max = \"0\""),
        ("warmup_steps = 0", "flip = true", "INVALID_ORDER", "training.flip"),
        ("# rows = \"0..500\"", "rows = \"0..500\"", "INVALID_ORDER", "rows.rows = \"0..500\""),
        ("seed = 3", "seed = 3\nspeed = 1", "INVALID_ORDER", "speed"),
        (referee.as_str(), renter.as_str(), "INVALID_ORDER", "referee = "),
    ] {
        assert!(text.contains(from), "{from}");
        let (found, message) = refused(&text.replacen(from, to, 1), folder.path());
        assert_eq!(found, code, "{message}");
        assert!(message.contains(part), "{message:?} lacks {part:?}");
    }
}

#[test]
fn a_rest_continues_the_job_after_the_last_segment() {
    let folder = tempfile::tempdir().unwrap();
    let draft = from_text(&new_order(folder.path()), folder.path()).unwrap();
    let order = |rest| draft.order(Path::new(""), &parties(), MACHINE, rest).unwrap();
    let whole = order(None);
    let (start, after) = (Digest([8; 32]), whole.id());
    let rest = OrderRest { after, first_segment: 7, segments: 3, steps: 2, start };
    let order_of_rest = order(Some(&rest));
    assert_eq!((order_of_rest.first_segment, order_of_rest.segments), (7, 3));
    assert_eq!((order_of_rest.start, order_of_rest.job), (start, whole.job));
    // Three of ten segments cost three of ten florins.
    assert_eq!(order_of_rest.price_max, "3".parse().unwrap());
    assert_ne!(order_of_rest.nonce, whole.nonce);
    assert_eq!(order(Some(&rest)), order_of_rest, "a second run makes the same order");
    let opening = LeaseOpening { order: whole, opened: Timestamp(0), beacon: start };
    let lease = RecordedLease::open(opening).unwrap();
    let error = OrderRest::after(lease.lease()).unwrap_err();
    assert!(error.to_string().contains("goes on"), "{error}");
}

/// The new order with the first layers of its model at home.
fn split_order(folder: &Path, at_home: &str) -> String {
    let lines = format!("[split]\nat_home = [{at_home}]\n");
    new_order(folder).replace("# [split]\n# at_home = [\"stem.*\"]\n", &lines)
}

#[test]
fn layers_and_rows_stay_at_home() {
    let folder = tempfile::tempdir().unwrap();
    let whole = from_text(&new_order(folder.path()), folder.path()).unwrap();
    assert_eq!(whole.split, None);
    let text = split_order(folder.path(), "\"patch.*\", \"token\", \"place\"");
    let draft = from_text(&text, folder.path()).unwrap();
    let split = draft.split.clone().unwrap();
    assert_eq!((split.at_home.len(), split.numbers), (4, [64, 40]));
    assert!(split.nodes[0] < split.nodes[1], "{split:?}");
    let names: Vec<&str> = draft.job.graph.tensors.iter().map(|own| own.name.as_str()).collect();
    assert!(!names.is_empty() && !names.iter().any(|name| name.starts_with("patch")), "{names:?}");
    assert_eq!(draft.job.graph.inputs, 40);
    // No blob has a row, nor a weight of the first layers.
    let rows = whole.blob(whole.job.rows.digest).unwrap();
    let row = &rows[64..64 + 64];
    let (graph, weights) = florin_learning::graph::read_archive(&archive()).unwrap();
    let names = graph.inputs.iter().filter_map(|input| input.role.name());
    let mut named = names.zip(&weights.tensors);
    let weight = named.find(|(name, _)| *name == "patch.weight").unwrap().1.bytes.as_slice();
    let has = |bytes: &[u8], own: &[u8]| bytes.windows(own.len()).any(|window| window == own);
    assert!(whole.blobs.iter().any(|(_, bytes)| has(bytes, row)));
    assert!(whole.blobs.iter().any(|(_, bytes)| has(bytes, weight)));
    for (digest, bytes) in &draft.blobs {
        assert!(!has(bytes, row) && !has(bytes, weight), "{digest}");
    }
    // The same file has the same job again.
    assert_eq!(from_text(&text, folder.path()).unwrap().job.digest(), draft.job.digest());
    assert!(draft.order(Path::new("order.toml"), &parties(), MACHINE, None).is_ok());
}

#[test]
fn a_split_that_cannot_be_made_is_refused_with_its_key() {
    let folder = tempfile::tempdir().unwrap();
    for (at_home, expected) in [
        ("\"nothing\"", "matches no parameter"),
        ("\"*\"", "leaves no parameter to train"),
        ("\"block.mlp.0.*\"", "let it stay at home, too"),
        ("", "no node reads a parameter"),
    ] {
        let (code, message) = refused(&split_order(folder.path(), at_home), folder.path());
        assert_eq!(code, "INVALID_ORDER", "{at_home}");
        assert!(message.contains("split.at_home") && message.contains(expected), "{message}");
    }
}
