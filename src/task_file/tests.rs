//! The template is valid, and invalid files are refused with line, key, value and expected value.

use std::path::Path;

use florin_protocol::{
    Address, Digest, MarketId, Micro, Optimizer, Schedule, Timestamp, UpdateFormat,
};

use super::*;

fn parties() -> Parties {
    Parties {
        market: MarketId { chain: florin_protocol::ChainId(1), genesis: Digest([7; 32]) },
        buyer: Address([1; 20]),
        coordinator: Address([2; 20]),
        now: Timestamp(1_000_000),
    }
}

fn template() -> String {
    super::template(42)
}

fn refused(text: &str) -> String {
    let problem = from_text(text, Path::new(""), &parties()).expect_err("must be refused");
    problem.at(Path::new("task.toml"), text).to_string()
}

#[test]
fn the_template_is_a_valid_task() {
    let ready = from_text(&template(), Path::new(""), &parties()).unwrap();
    assert_eq!(ready.spec.check(), Ok(()));
    let Holdout { rows, rows_per_round, .. } = ready.spec.holdout;
    assert_eq!((rows, rows_per_round, ready.is_per_round_derived), (750, 75, false));
    assert_eq!(ready.spec.arbiter, ready.spec.coordinator);
    assert_eq!(ready.spec.expires, Timestamp(1_000_000 + 7 * 86_400_000));
    assert_eq!(ready.spec.base_model, blob_digest(&ready.base_model));
    florin_work::CommittedHoldout::decode(&ready.spec, &ready.holdout).unwrap();
}

#[test]
fn a_coordinator_without_an_arbiter_must_be_trusted_by_name() {
    let replaced = |line: &str| template().replacen(TRUST, line, 1);
    let named = format!("arbiter = \"{}\"", Address([7; 20]));
    let ready = from_text(&replaced(&named), Path::new(""), &parties()).unwrap();
    assert_eq!(ready.spec.arbiter, Address([7; 20]));
    let coordinator = format!("arbiter = \"{}\"", parties().coordinator);
    for (line, part) in [
        (coordinator, "write trust = \"coordinator\" instead"),
        (format!("{TRUST}\n{named}"), "not both"),
        (String::new(), "trust = (missing)"),
    ] {
        let message = refused(&replaced(&line));
        assert!(message.contains(part), "{line}: {message:?} lacks {part:?}");
    }
}

#[test]
fn without_rows_per_round_the_rounds_share_the_holdout_rows_equally() {
    let text = template().replace("rows_per_round = 75", "").replace("count = 10", "count = 7");
    let ready = from_text(&text, Path::new(""), &parties()).unwrap();
    assert_eq!((ready.spec.holdout.rows_per_round, ready.is_per_round_derived), (107, true));
    let few = refused(&text.replace("1047..1797", "1784..1797"));
    for part in ["holdout.rows = 13", "at least 14 rows", "at most 6 rounds"] {
        assert!(few.contains(part), "{few}");
    }
}

/// Softmax regression, for which the template's hidden layers are removed.
fn softmax_that_starts_from(path: &str) -> String {
    template()
        .replace("kind = \"mlp\"", &format!("kind = \"softmax\"\ninitial = {path:?}"))
        .replace("hidden = [64]\n", "")
}

#[test]
fn a_buyer_can_go_on_from_the_model_of_an_earlier_task() {
    let folder = tempfile::tempdir().unwrap();
    let read = |text: &str| from_text(text, folder.path(), &parties());
    let text = softmax_that_starts_from("earlier.safetensors");
    let derived = read(&text.replace("initial =", "# initial =")).unwrap();
    assert!(!derived.is_model_brought);
    let parameters = vec![0.5; 64 * 10 + 10];
    let bytes = florin_work::encode_parameters(&derived.spec, &parameters);
    std::fs::write(folder.path().join("earlier.safetensors"), &bytes).unwrap();
    let ready = read(&text).unwrap();
    assert!(ready.is_model_brought);
    assert_eq!((ready.spec.base_model, &ready.base_model), (blob_digest(&bytes), &bytes));
    assert_ne!(ready.spec.id(), derived.spec.id());

    let refused = |bytes: &[u8]| {
        std::fs::write(folder.path().join("earlier.safetensors"), bytes).unwrap();
        read(&text).expect_err("must be refused").at(Path::new("task.toml"), &text).to_string()
    };
    let short = refused(&bytes[1..]);
    assert!(short.contains(&format!("a file of {} bytes", bytes.len())), "{short}");
    let infinite = florin_work::encode_parameters(&derived.spec, &vec![f32::INFINITY; 650]);
    let wrong = refused(&infinite);
    assert!(wrong.contains("model.initial") && wrong.contains("finite"), "{wrong}");
}

#[test]
fn the_same_file_gives_the_same_task() {
    let read = || from_text(&template(), Path::new(""), &parties()).unwrap().spec.id();
    assert_eq!(read(), read());
}

/// The template's line with the update format, and its value.
const TRUST: &str = "trust = \"coordinator\"";
const FORMAT: &str = "format = { kind = \"f32\" }";
const SGD: &str = "optimizer = \"sgd\"";
const F32: &str = "{ kind = \"f32\" }";

#[test]
fn every_update_format_is_read_from_the_file() {
    let spec = |text: &str| from_text(text, Path::new(""), &parties()).unwrap().spec.rounds.format;
    assert_eq!(spec(&template()), UpdateFormat::F32);
    assert_eq!(spec(&template().replace(FORMAT, "")), UpdateFormat::F32, "the default");
    for (written, format) in [
        ("{ kind = \"bf16\" }", UpdateFormat::Bf16),
        ("{ kind = \"int8\" }", UpdateFormat::Int8),
        ("{ kind = \"top_k\", permille = 50 }", UpdateFormat::TopK { permille: 50 }),
    ] {
        let text = template().replace(FORMAT, &format!("format = {written}"));
        assert_eq!(spec(&text), format);
    }
}

#[test]
fn the_betas_of_adam_have_defaults() {
    let settings = |text: &str| from_text(text, Path::new(""), &parties()).unwrap().spec.training;
    let text = template();
    assert_eq!(settings(&text), settings(&text.replace(SGD, "")), "the default is sgd");
    let adamw = "optimizer = \"adamw\"\nschedule = \"cosine\"";
    let text = text.replace(SGD, adamw).replace("schedule = \"constant\"\n", "");
    let found = settings(&text);
    let (beta1, beta2) = (Micro(900_000), Micro(999_000));
    assert_eq!(found.optimizer, Optimizer::AdamW { beta1, beta2 });
    assert_eq!((found.schedule, found.warmup_steps), (Schedule::Cosine, 0));
}

#[test]
fn a_learning_rate_grows_with_the_batch_beyond_the_one_for_which_it_is_stated() {
    let rate = |optimizer: &str, batch: u32, of: &str| {
        let text = template().replace("\nbatch = 32\n", &format!("\nbatch = {batch}\n{of}"));
        let text = text.replace(SGD, &format!("optimizer = \"{optimizer}\""));
        from_text(&text, Path::new(""), &parties()).map(|ready| ready.spec.training.learning_rate.0)
    };
    let of = "learning_rate_batch = 32\n";
    assert_eq!(rate("sgd", 128, "").unwrap(), 100_000);
    assert_eq!(rate("sgd", 32, of).unwrap(), 100_000);
    assert_eq!(rate("sgd", 128, of).unwrap(), 400_000);
    assert_eq!(rate("sgd", 8, of).unwrap(), 25_000);
    assert_eq!(rate("adam", 128, of).unwrap(), 200_000);
    assert_eq!(rate("adamw", 64, of).unwrap(), 141_421);
    for bad in ["0", "65537"] {
        let refused = rate("sgd", 32, &format!("learning_rate_batch = {bad}\n")).unwrap_err();
        let message = refused.message(Path::new("task.toml"), "");
        assert!(message.contains("training.learning_rate_batch"), "{message}");
    }
    let beyond = rate("sgd", 65_536, "learning_rate_batch = 1\n").unwrap_err();
    let message = beyond.message(Path::new("task.toml"), "");
    assert!(
        message.contains("training.learning_rate_batch") && message.contains("65536"),
        "{message}"
    );
}

#[test]
fn an_invalid_value_is_refused_with_line_key_value_and_expected_value() {
    for (from, to, parts) in [
        ("count = 10", "count = 0", ["rounds.count = 0", "1 to 100000"]),
        ("data = \"1000\"", "data = \"0.005\"", ["budget.data = 0.005", "at least 0.01"]),
        ("bond_min = \"10\"", "bond_min = \"1\"", ["budget.bond_min = 1", "debit_max = 2"]),
        ("rows = \"1047..1797\"", "rows = \"9..9999\"", ["holdout.rows = \"9..9999\"", "1797"]),
        ("rows = \"1047..1797\"", "rows = \"5..6\"", ["holdout.rows = 1", "2 to 16777216 rows"]),
        (
            "rows_per_round = 75",
            "rows_per_round = 76",
            ["holdout.rows_per_round = 76", "at most 75 rows"],
        ),
        ("rows_per_round = 75", "rows_per_round = 1", ["holdout.rows_per_round = 1", "2 to 65536"]),
        ("source = \"digits\"", "source = \"csv:gone.csv#y\"", ["holdout.source", "gone.csv"]),
        ("source = \"digits\"", "source = \"sprouts\"", ["holdout.source", "no `kind:`"]),
        ("width = 64", "width = 63", ["holdout.source", "data.width = 63"]),
        ("inputs = 64", "inputs = 63", ["data.width = 64", "the model takes 63"]),
        ("kind = \"mlp\"", "kind = \"softmax\"", ["model.hidden", "no such key"]),
        ("train = \"2 min\"", "train = \"0 s\"", ["rounds.train = \"0 ms\"", "1 ms to 30 days"]),
        ("unbond = \"10 min\"", "unbond = \"5 min\"", ["budget.unbond", "budget.challenge"]),
        ("expires = \"7 d\"", "expires = \"1970-01-01\"", ["expires", "future"]),
        ("expires = \"7 d\"", "expires = \"367 d\"", ["expires", "366 days"]),
        ("expires = \"7 d\"", "expires = \"soon\"", ["expires", "duration"]),
        ("nodes = 3", "nodes = 0", ["estimator.nodes = 0", "1 to 8"]),
        (F32, "{ kind = \"top_k\" }", ["rounds.format.permille = nothing", "1 to 500"]),
        (F32, "{ kind = \"top_k\", permille = 501 }", ["rounds.format.permille = 501", "1 to 500"]),
        (F32, "{ kind = \"int8\", permille = 5 }", ["rounds.format.permille = 5", "only the kind"]),
        ("momentum = 0.0", "momentum = 1", ["training.momentum = 1", "below 1"]),
        (SGD, "optimizer = \"lion\"", ["lion", "`adamw`"]),
        (SGD, "betas = [0.9, 0.99]", ["training.betas", "only the optimizers"]),
        (
            SGD,
            "optimizer = \"adam\"\nbetas = [0.9, 1]",
            ["training.betas = 1", "at least 0 and below 1"],
        ),
    ] {
        let text = template();
        assert!(text.contains(from), "the template has no {from:?}");
        let message = refused(&text.replacen(from, to, 1));
        for part in parts {
            assert!(message.contains(part), "{to}: {message:?} lacks {part:?}");
        }
        assert!(message.contains("task.toml, line "), "{to}: no line in {message:?}");
    }
}

#[test]
fn an_invalid_task_file_is_refused_with_its_line() {
    for (from, to, part) in [
        ("count = 10", "count = 10\ncuont = 9", "cuont"),
        ("count = 10", "", "count"),
        ("data = \"1000\"", "data = 1000", "string"),
        ("data = \"1000\"", "data = \"-5\"", "-5"),
        ("learning_rate = 0.1", "learning_rate = nan", "NaN"),
        ("learning_rate = 0.1", "learning_rate = -0.1", "-0.1"),
        ("train = \"2 min\"", "train = \"2 moons\"", "2 moons"),
        ("[rounds]", "[rounds", "line "),
        ("name = \"Handwritten digits\"", "name = 5", "string"),
        (TRUST, "trust = \"me\"", "coordinator"),
        (TRUST, "arbiter = \"coordinator\"", "address"),
        (FORMAT, "format = { kind = \"f16\" }", "`bf16`, `int8`, `top_k`"),
    ] {
        let message = refused(&template().replacen(from, to, 1));
        assert!(message.contains(part), "{to}: {message:?} lacks {part:?}");
        assert!(message.contains("task.toml, line "), "{to}: no line in {message:?}");
    }
}

#[test]
fn a_key_is_located_by_its_line_and_by_its_offset() {
    let text = "a = 1\n[rounds]\ncount = 0\n";
    assert_eq!(locate::line_of(text, "rounds.count"), Some(3));
    assert_eq!(locate::line_of(text, "rounds.gone"), Some(2));
    assert_eq!(locate::line_of(text, "gone"), None);
    assert_eq!(locate::key_at(text, text.find('0').unwrap()), Some("rounds.count".to_owned()));
}

#[test]
fn images_have_the_scale_of_the_holdout_and_random_changes() {
    let with = |keys: &str| template().replace("\n[holdout]", &format!("{keys}\n\n[holdout]"));
    let image = "image = { channels = 1, height = 8, width = 8, resize = 9 }";
    let changes = ("#   flip = true\n#   crop_padding = 4", "flip = true\ncrop_padding = 2");
    let text = with(image).replace(changes.0, changes.1);
    let spec = from_text(&text, Path::new(""), &parties()).unwrap().spec;
    let wanted = florin_protocol::Augmentation { flip: true, crop_padding: 2 };
    assert_eq!(spec.training.augmentation, wanted);
    let florin_protocol::FeatureEncoding::Images(images) = spec.data.encoding.unwrap().features
    else {
        panic!("no images")
    };
    assert_eq!((images.height, images.width, images.resize), (8, 8, Some(9)));
    assert!(images.channels[0].offset.to_string().starts_with("4.8"), "{images:?}");
    for (text, parts) in [
        (template().replace(changes.0, changes.1), ["training.flip", "data.image"]),
        (text.replace("crop_padding = 2", "crop_padding = 65"), ["training.crop_padding", "64"]),
        (text.replace("resize = 9", "resize = 7"), ["data.image", "resize is at least both"]),
        (text.replace("channels = 1", "channels = 2"), ["data.image", "1 or 3 channels"]),
        (text.replace("height = 8", "height = 4"), ["holdout.source", "64 features"]),
        (text.replace("resize = 9", "offset = [1, 2], factor = [1, 2]"), ["data.image", "each"]),
        (with(&format!("{image}\noffset = 1\nfactor = 2")), ["data.image", "its own offsets"]),
    ] {
        let message = refused(&text);
        for part in parts {
            assert!(message.contains(part), "{message:?} lacks {part:?}");
        }
    }
}

#[test]
fn the_mode_of_rounds_sets_their_members_and_the_weight_of_late_updates() {
    use florin_protocol::{StalenessRule, StalenessWeight};
    let with = |mode: &str| {
        let text = template().replace("[rounds]\n", &format!("[rounds]\nmode = {mode}\n"));
        if mode.contains("k = 10") {
            text.replace("cohort_target = 4", "cohort_target = 10")
        } else {
            text
        }
    };
    let rules = |mode: &str| {
        let rules = from_text(&with(mode), Path::new(""), &parties()).unwrap().spec.rounds;
        let StalenessRule { rounds, weight } = rules.staleness;
        (rules.cohort_target, rules.over_selection, rounds, weight)
    };
    let (root, inverse) = (StalenessWeight::InverseRoot, StalenessWeight::Inverse);
    let table = [
        (r#"{ kind = "synchronous" }"#, (4, 0, 0, root)),
        (r#"{ kind = "synchronous", staleness = "inverse" }"#, (4, 0, 1, inverse)),
        (r#"{ kind = "synchronous", late_rounds = 3 }"#, (4, 0, 3, root)),
        (r#"{ kind = "buffered" }"#, (4, 8, 8, root)),
        (r#"{ kind = "buffered", k = 10 }"#, (10, 20, 8, root)),
        (
            r#"{ kind = "buffered", k = 10, concurrency = 10, staleness = "inverse", late_rounds = 2 }"#,
            (10, 0, 2, inverse),
        ),
    ];
    for (mode, expected) in table {
        assert_eq!(rules(mode), expected, "{mode}");
    }
    for (mode, part) in [
        (r#"{ kind = "buffered", k = 10, concurrency = 9 }"#, "rounds.mode.concurrency"),
        (r#"{ kind = "buffered", concurrency = 2000 }"#, "rounds.mode.concurrency"),
        (r#"{ kind = "synchronous", staleness = "equal", late_rounds = 0 }"#, "late_rounds"),
        (r#"{ kind = "buffered", late_rounds = 0 }"#, "rounds.mode.late_rounds"),
        (r#"{ kind = "buffered", late_rounds = 65 }"#, "rounds.mode.late_rounds"),
        (r#"{ kind = "buffered", k = 1 }"#, "rounds.mode.k"),
        (r#"{ kind = "synchronous", k = 10 }"#, "k"),
        (r#"{ kind = "asynchronous" }"#, "buffered"),
        (r#"{ kind = "buffered", staleness = "exponential" }"#, "inverse_root"),
    ] {
        let message = refused(&with(mode));
        assert!(message.contains(part), "{mode}: {message:?} lacks {part:?}");
    }
}

#[test]
fn keys_that_contradict_the_mode_are_refused() {
    let with = |mode: &str| template().replace("[rounds]\n", &format!("[rounds]\nmode = {mode}\n"));
    let refused_with = |mode: &str, over: &str| {
        refused(&with(mode).replace("over_selection = 0", &format!("over_selection = {over}")))
    };
    let message = refused_with(r#"{ kind = "buffered", k = 10 }"#, "0");
    for part in ["rounds.mode.k = 10", "rounds.cohort_target = 4"] {
        assert!(message.contains(part), "{message}");
    }
    let message = refused_with(r#"{ kind = "buffered", concurrency = 12 }"#, "5");
    for part in ["rounds.over_selection = 5", "rounds.mode.concurrency = 12", "8 more than k"] {
        assert!(message.contains(part), "{message}");
    }
    let same = with(r#"{ kind = "buffered", k = 4, concurrency = 12 }"#);
    let same = same.replace("over_selection = 0", "over_selection = 8");
    assert_eq!(from_text(&same, Path::new(""), &parties()).unwrap().spec.rounds.over_selection, 8);
}

#[test]
fn a_mistake_inside_a_table_of_rounds_is_named_with_key_value_and_valid_values() {
    let (random, header) = ("selection = { knob = \"random\" }", "[rounds]\n");
    let selection = |value: &str| template().replace(random, &format!("selection = {value}"));
    let mode = |value: &str| template().replace(header, &format!("{header}mode = {value}\n"));
    let deadline =
        |value: &str| template().replace(header, &format!("{header}deadline = {value}\n"));
    let table = [
        (mode(r#"{ kind = "buffered", k = -1 }"#), "rounds.mode.k = -1: a whole number"),
        (mode(r#"{ kind = "buffered", k = 4.5 }"#), "rounds.mode.k = 4.5: a whole number"),
        (
            mode(r#"{ kind = "buffered", staleness = 1.5 }"#),
            "rounds.mode.staleness = 1.5: use \"equal\"",
        ),
        (
            mode(r#"{ kind = "buffered", staleness = "banana" }"#),
            "rounds.mode.staleness = \"banana\"",
        ),
        (mode(r#"{ kind = "buffered", late_rounds = "8" }"#), "rounds.mode.late_rounds = \"8\""),
        (mode(r#"{ kind = "buffered", knob = 3 }"#), "rounds.mode.knob = 3: there is no such key"),
        (mode(r#"{ k = 4 }"#), "rounds.mode.kind = nothing: use \"synchronous\", \"buffered\""),
        (mode(r#""buffered""#), "rounds.mode = \"buffered\": write a table"),
        (selection(r#""fast""#), "rounds.selection = \"fast\": write a table"),
        (selection(r#"["fast"]"#), "rounds.selection = [\"fast\"]: write a table"),
        (selection("{ knob = 3 }"), "rounds.selection.knob = 3: use \"random\", \"fast\""),
        (
            selection(r#"{ knob = "fast", explore = -0.1 }"#),
            "rounds.selection.explore = -0.1: a share",
        ),
        (
            selection(r#"{ knob = "random", explore = 0.3 }"#),
            "rounds.selection.explore = 0.3: no key",
        ),
        (
            selection(r#"{ knob = "fast", explore = nan }"#),
            "rounds.selection.explore = NaN: a share",
        ),
        (
            selection(r#"{ knob = "fast", explore = 1e300 }"#),
            "rounds.selection.explore = 1e300: a share",
        ),
        (deadline(r#""90 s""#), "rounds.deadline = \"90 s\": write a table"),
        (deadline("{ slack = 2 }"), "rounds.deadline.quantile = nothing: a number from 0 to 1"),
        (deadline("{ quantile = 0.9, slack = true }"), "rounds.deadline.slack = true: a factor"),
        (template().replace("learning_rate = 0.1", "learning_rate = 1e300"), "1e300 is not"),
        (template().replace("cohort_min = 2", "cohort_min = -2"), "expected a whole number"),
    ];
    for (text, part) in table {
        let message = refused(&text);
        assert!(message.contains("line ") && message.contains(part), "{message:?} lacks {part:?}");
    }
}
