//! The fuzz targets: each function parses arbitrary bytes and returns a description of the result.

use std::io::{Cursor, Write};
use std::sync::LazyLock;

use florin_coordinator::Config;
use florin_learning::DataSource;
use florin_learning::data::{
    FeatureEncoder, ImageShape, RowEncoder, ScaleKind, TableProfile, TextTokenizer, fit,
    fit_images, from_canonical_bytes, load, load_table,
};
use florin_learning::graph::{Graph, read_archive_from, read_description};
use florin_learning::trainer::TrainerCode;
use florin_ledger::rpc;
use florin_participant::{Secret, Wallet, check_keystore};
use florin_protocol::{
    Address, BlobRequest, Canonical, ChainId, CloseRequest, Commit, Digest, DisclosedRows,
    EnrolRequest, Invitation, MarketId, ModelArchitecture, Offer, Registration, Report, Signed,
    TaskSpec, Timestamp, UpdateHeader, UpdateReceipt, WorkOrder, WorkRecord, WorkRequest,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tempfile::NamedTempFile;

use florin::task_file::{self, Parties};

/// A parser under test.
pub(super) struct Target {
    pub(super) name: &'static str,
    /// Parses an input and describes the result.
    pub(super) run: fn(&[u8]) -> String,
}

/// All targets.
pub(super) const TARGETS: [Target; 16] = [
    Target { name: "safetensors", run: safetensors },
    Target { name: "messages", run: messages },
    Target { name: "bodies", run: bodies },
    Target { name: "settings", run: settings },
    Target { name: "task_file", run: task },
    Target { name: "csv", run: csv },
    Target { name: "idx", run: idx },
    Target { name: "npy", run: npy },
    Target { name: "keystore", run: keystore },
    Target { name: "invitation", run: invitation },
    Target { name: "graph", run: graph },
    Target { name: "trainer", run: trainer },
    Target { name: "image", run: image },
    Target { name: "tokenizer", run: tokenizer },
    Target { name: "trace", run: florin::trace::describe },
    Target { name: "transcript", run: crate::transcript::replay },
];

/// Limits on the memory and rounds of a keystore's key derivation, so that fuzzing stays fast.
const KDF_BYTES_MAX: u64 = 1 << 20;
const KDF_ROUNDS_MAX: u64 = 4_096;
/// Largest text that a tokenizer splits.
const TEXT_CHARS_MAX: usize = 200;

fn parties() -> Parties {
    let [buyer, coordinator] = [1, 2].map(|n| Address([n; 20]));
    let market = MarketId { chain: ChainId(1), genesis: Digest([9; 32]) };
    Parties { market, buyer, coordinator, now: Timestamp(1_000) }
}

/// The settings of a valid task.
const TASK: &str = include_str!("task.toml");

/// A task whose model has six parameters.
pub(super) static SMALL: LazyLock<TaskSpec> = LazyLock::new(|| {
    let text = task_file::overlay(TASK).expect("task.toml is valid TOML");
    let mut spec = task_file::parse_spec(&text, &parties()).expect("task.toml is a valid task");
    spec.model = ModelArchitecture::Softmax { inputs: 2, classes: 2 };
    (spec.data.width, spec.data.classes) = (2, 2);
    spec
});

/// An upload, parsed as an update, as a model, and as holdout rows.
fn safetensors(bytes: &[u8]) -> String {
    let update = florin_work::inspect_update(&SMALL, bytes);
    let mut delta = [f32::NAN; 6];
    let decoded = florin_work::decode_update_into(&SMALL, bytes, &mut delta);
    assert_eq!(describe(&update), describe(&decoded), "two decoders of updates disagree");
    let model = florin_work::decode_model(&SMALL, bytes);
    let rows = from_canonical_bytes(bytes);
    format!("{} {} {}", describe(&update), describe(&model), describe(&rows))
}

fn describe<T, E: std::fmt::Display>(result: &Result<T, E>) -> String {
    result.as_ref().map_or_else(ToString::to_string, |_| "accepted".to_owned())
}

/// A canonical message: an accepted message must encode to the same bytes, and survive a JSON round
/// trip.
fn message<T>(bytes: &[u8]) -> String
where
    T: Canonical + Serialize + DeserializeOwned + PartialEq,
{
    match T::from_bytes(bytes) {
        Err(error) => error.to_string(),
        Ok(message) => {
            assert!(message.to_bytes() == bytes, "a message has two encodings");
            check_json_round_trip(&message);
            format!("accepted: {}", std::any::type_name::<T>())
        }
    }
}

fn check_json_round_trip<T>(message: &T)
where
    T: Serialize + DeserializeOwned + PartialEq,
{
    let text = serde_json::to_vec(message).expect("a message has a JSON form");
    let again: T = serde_json::from_slice(&text).expect("the JSON form is valid");
    assert!(&again == message, "the JSON round trip changed the message");
}

/// The first byte selects the message type of the other bytes.
fn messages(bytes: &[u8]) -> String {
    let Some((kind, bytes)) = bytes.split_first() else {
        return "empty".to_owned();
    };
    let result = match kind % 13 {
        0 => message::<TaskSpec>(bytes),
        1 => message::<EnrolRequest>(bytes),
        2 => message::<Offer>(bytes),
        3 => message::<Commit>(bytes),
        4 => message::<UpdateHeader>(bytes),
        5 => message::<UpdateReceipt>(bytes),
        6 => message::<WorkOrder>(bytes),
        7 => message::<WorkRecord>(bytes),
        8 => message::<Report>(bytes),
        9 => message::<BlobRequest>(bytes),
        10 => message::<WorkRequest>(bytes),
        11 => message::<Signed<UpdateHeader>>(bytes),
        _ => describe(&DisclosedRows::from_bytes(bytes)),
    };
    format!("{} {result}", kind % 13)
}

/// A JSON body: an accepted body must survive a round trip.
fn body<T>(bytes: &[u8]) -> String
where
    T: Serialize + DeserializeOwned + PartialEq,
{
    match serde_json::from_slice::<T>(bytes) {
        Err(error) => error.to_string(),
        Ok(body) => {
            check_json_round_trip(&body);
            format!("accepted: {}", std::any::type_name::<T>())
        }
    }
}

/// The first byte selects the route of the other bytes.
fn bodies(bytes: &[u8]) -> String {
    let Some((kind, bytes)) = bytes.split_first() else {
        return "empty".to_owned();
    };
    let result = match kind % 10 {
        0 => serde_json::from_slice::<TaskSpec>(bytes)
            .map_or_else(|error| error.to_string(), |spec| describe(&spec.check())),
        1 => body::<Registration>(bytes),
        2 => body::<CloseRequest>(bytes),
        3 => body::<Signed<EnrolRequest>>(bytes),
        4 => body::<Signed<Commit>>(bytes),
        5 => body::<Signed<WorkRequest>>(bytes),
        6 => body::<Signed<BlobRequest>>(bytes),
        7 => body::<Signed<WorkRecord>>(bytes),
        8 => body::<rpc::LedgerRequest>(bytes),
        _ => body::<Signed<Report>>(bytes),
    };
    format!("{} {result}", kind % 10)
}

fn settings(bytes: &[u8]) -> String {
    describe(&Config::read(&String::from_utf8_lossy(bytes), |_| None))
}

fn task(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    match task_file::parse_spec(&text, &parties()) {
        Ok(spec) => describe(&spec.check()),
        Err(failure) => failure.to_string(),
    }
}

/// Writes the bytes to a file, because data is only loaded from files.
fn file(bytes: &[u8]) -> NamedTempFile {
    let written = NamedTempFile::new().and_then(|mut file| file.write_all(bytes).map(|()| file));
    written.expect("the temporary folder is writable")
}

/// The result of a loader, without the file names, which differ between runs.
fn load_result(source: &DataSource, files: &[&NamedTempFile]) -> String {
    let text = describe(&load(source));
    files.iter().fold(text, |text, file| text.replace(&*file.path().to_string_lossy(), "FILE"))
}

fn csv(bytes: &[u8]) -> String {
    let file = file(bytes);
    let source = DataSource::Csv { file: file.path().to_owned(), label: "label".to_owned() };
    // A table that fits an encoding is encoded by it.
    let encoded = load_table(&source).ok().map(|table| {
        match fit(&table, &TableProfile::new(&table), ScaleKind::Standard) {
            Ok(encoder) => describe(&encoder.encode(&table)),
            Err(error) => error.to_string(),
        }
    });
    format!("{} {}", load_result(&source, &[&file]), encoded.unwrap_or_default())
}

/// Two files: the first byte is the length of the images file, the rest is the labels file.
fn idx(bytes: &[u8]) -> String {
    let (first, rest) = bytes.split_first().unwrap_or((&0, &[]));
    let (images, labels) = rest.split_at(rest.len().min(usize::from(*first)));
    let (images, labels) = (file(images), file(labels));
    let (a, b) = (images.path().to_owned(), labels.path().to_owned());
    load_result(&DataSource::Idx { images: a, labels: b }, &[&images, &labels])
}

/// The text form of an invitation: an accepted one is written as it was read, in lower case.
fn invitation(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let read = text.parse::<Invitation>();
    if let Ok(invitation) = &read {
        let again = invitation.to_string();
        assert!(again.eq_ignore_ascii_case(text.trim()), "an invitation has two text forms");
        check_json_round_trip(invitation);
    }
    describe(&read)
}

/// Two files: the first two bytes are the length of the features file, the rest is the labels file.
fn npy(bytes: &[u8]) -> String {
    let (first, rest) = bytes.split_at(bytes.len().min(2));
    let length = first.iter().rev().fold(0, |length, byte| length << 8 | usize::from(*byte));
    let (features, labels) = rest.split_at(rest.len().min(length));
    let (features, labels) = (file(features), file(labels));
    let (a, b) = (features.path().to_owned(), labels.path().to_owned());
    load_result(&DataSource::Npy { features: a, labels: b }, &[&features, &labels])
}

/// A key file: its fields, and its key if the derivation is cheap.
fn keystore(bytes: &[u8]) -> String {
    match check_keystore(bytes) {
        Err(why) => why,
        Ok(cost) if cost.memory > KDF_BYTES_MAX || cost.iterations > KDF_ROUNDS_MAX => {
            "expensive".to_owned()
        }
        Ok(_) => {
            let file = file(bytes);
            let passphrase = Secret::new("test".to_owned());
            match Wallet::open(file.path(), &passphrase) {
                Ok(_) => "opened".to_owned(),
                Err(error) => error.to_string().replace(&*file.path().to_string_lossy(), "FILE"),
            }
        }
    }
}

/// A model: an archive, the description of a graph in one, or canonical bytes. An accepted description
/// has canonical bytes that are accepted.
fn graph(bytes: &[u8]) -> String {
    let archive = read_archive_from(Cursor::new(bytes)).map(|(graph, _)| graph);
    let described = read_description(bytes);
    let canonical = Graph::from_bytes(bytes);
    for graph in [&archive, &described, &canonical].into_iter().flatten() {
        let bytes = graph.to_bytes();
        let again = Graph::from_bytes(&bytes);
        assert!(again.as_ref() == Ok(graph), "a graph does not survive its bytes: {again:?}");
    }
    if let Ok(graph) = &canonical {
        assert!(graph.to_bytes() == bytes, "a graph has two encodings");
    }
    format!("{} {} {}", describe(&archive), describe(&described), describe(&canonical))
}

/// The code of a trainer: an accepted archive is written again with the same bytes.
fn trainer(bytes: &[u8]) -> String {
    let read = TrainerCode::from_bytes(bytes);
    if let Ok(code) = &read {
        assert!(code.to_bytes() == bytes, "code has two archives");
        assert!(code.names().all(|name| !name.starts_with('/') && !name.contains("..")));
    }
    describe(&read)
}

/// A file in a folder of images, as pixels of a task.
fn image(bytes: &[u8]) -> String {
    let folder = tempfile::tempdir().expect("the temporary folder is writable");
    let class = folder.path().join("class");
    let written = std::fs::create_dir(&class).and_then(|()| std::fs::write(class.join("x"), bytes));
    written.expect("the temporary folder is writable");
    let source = DataSource::Images { folder: folder.path().to_owned() };
    let text = match load_table(&source) {
        Err(error) => error.to_string(),
        Ok(table) => {
            let shape = ImageShape { channels: 3, height: 4, width: 4 };
            match fit_images(&table, shape, Some(4), ScaleKind::Standard) {
                Err(error) => error.to_string(),
                Ok(images) => {
                    let features = FeatureEncoder::Images(images);
                    let class_names = vec!["class".to_owned()];
                    let encoder = RowEncoder { classes: 1, class_names, features, target: None };
                    describe(&encoder.encode(&table))
                }
            }
        }
    };
    text.replace(&*folder.path().to_string_lossy(), "FOLDER")
}

/// A tokenizer, which splits its own file.
fn tokenizer(bytes: &[u8]) -> String {
    let Ok(tokenizer) = TextTokenizer::from_bytes(bytes) else { return "refused".to_owned() };
    let text = String::from_utf8_lossy(bytes).chars().take(TEXT_CHARS_MAX).collect();
    describe(&tokenizer.tokens(&[text], None))
}
