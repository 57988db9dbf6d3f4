//! What is tried: each function takes any bytes and says in words how they were taken or refused.

use std::io::Write;
use std::sync::LazyLock;

use florin_coordinator::Config;
use florin_learning::DataSource;
use florin_learning::data::{from_canonical_bytes, load};
use florin_ledger::rpc;
use florin_participant::{Secret, Wallet, check_keystore};
use florin_protocol::{
    Address, BlobRequest, Canonical, ChainId, CloseRequest, Commit, Digest, Enrol, Market, Model,
    Offer, Receipt, Registration, Report, ShownRows, Signed, TaskSpec, Tick, UpdateHeader,
    WorkOrder, WorkQuery, WorkRecord,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tempfile::NamedTempFile;

use crate::task_file::{self, Parties};

/// Something that takes bytes.
pub(super) struct Target {
    pub(super) name: &'static str,
    /// Takes an input, and says how it behaved.
    pub(super) run: fn(&[u8]) -> String,
}

/// All of them.
pub(super) const TARGETS: [Target; 8] = [
    Target { name: "safetensors", run: safetensors },
    Target { name: "messages", run: messages },
    Target { name: "bodies", run: bodies },
    Target { name: "settings", run: settings },
    Target { name: "task_file", run: task },
    Target { name: "csv", run: csv },
    Target { name: "idx", run: idx },
    Target { name: "keystore", run: keystore },
];

/// Memory and rounds of a keystore's key derivation that a fuzzer can wait for.
const CHEAP_BYTES: u64 = 1 << 20;
const CHEAP_ROUNDS: u64 = 4_096;

fn parties() -> Parties {
    let [buyer, coordinator] = [1, 2].map(|n| Address([n; 20]));
    let market = Market { chain: ChainId(1), genesis: Digest([9; 32]) };
    Parties { market, buyer, coordinator, now: Tick(1_000) }
}

/// A task file that works.
const TASK: &str = include_str!("task.toml");

/// A task with a model of six parameters.
static SMALL: LazyLock<TaskSpec> = LazyLock::new(|| {
    let mut spec = task_file::check_text(TASK, &parties()).expect("task.toml is a task that works");
    spec.model = Model::Softmax { inputs: 2, classes: 2 };
    (spec.data.width, spec.data.classes) = (2, 2);
    spec
});

/// An upload: as an update, as a model, and as a holdout's rows.
fn safetensors(bytes: &[u8]) -> String {
    let update = florin_work::inspect_update(&SMALL, bytes);
    let mut delta = [f32::NAN; 6];
    let decoded = florin_work::decode_update_into(&SMALL, bytes, &mut delta);
    assert_eq!(said(&update), said(&decoded), "two ways to read an update");
    let model = florin_work::check_model(&SMALL, bytes);
    let rows = from_canonical_bytes(bytes);
    format!("{} {} {}", said(&update), said(&model), said(&rows))
}

fn said<T, E: std::fmt::Display>(result: &Result<T, E>) -> String {
    result.as_ref().map_or_else(ToString::to_string, |_| "taken".to_owned())
}

/// A message's bytes: what is taken must be written the same way again, in JSON too.
fn message<T>(bytes: &[u8]) -> String
where
    T: Canonical + Serialize + DeserializeOwned + PartialEq,
{
    match T::from_bytes(bytes) {
        Err(error) => error.to_string(),
        Ok(message) => {
            assert!(message.to_bytes() == bytes, "two ways to write one message");
            same_in_json(&message);
            format!("taken: {}", std::any::type_name::<T>())
        }
    }
}

fn same_in_json<T>(message: &T)
where
    T: Serialize + DeserializeOwned + PartialEq,
{
    let text = serde_json::to_vec(message).expect("a message has a JSON form");
    let again: T = serde_json::from_slice(&text).expect("its JSON form is one");
    assert!(&again == message, "JSON says something else");
}

/// The first byte says which message the others are.
fn messages(bytes: &[u8]) -> String {
    let Some((kind, bytes)) = bytes.split_first() else {
        return "nothing".to_owned();
    };
    let said = match kind % 13 {
        0 => message::<TaskSpec>(bytes),
        1 => message::<Enrol>(bytes),
        2 => message::<Offer>(bytes),
        3 => message::<Commit>(bytes),
        4 => message::<UpdateHeader>(bytes),
        5 => message::<Receipt>(bytes),
        6 => message::<WorkOrder>(bytes),
        7 => message::<WorkRecord>(bytes),
        8 => message::<Report>(bytes),
        9 => message::<BlobRequest>(bytes),
        10 => message::<WorkQuery>(bytes),
        11 => message::<Signed<UpdateHeader>>(bytes),
        _ => said(&ShownRows::from_bytes(bytes)),
    };
    format!("{} {said}", kind % 13)
}

/// A JSON body: what is taken must mean the same when it is written again.
fn body<T>(bytes: &[u8]) -> String
where
    T: Serialize + DeserializeOwned + PartialEq,
{
    match serde_json::from_slice::<T>(bytes) {
        Err(error) => error.to_string(),
        Ok(body) => {
            same_in_json(&body);
            format!("taken: {}", std::any::type_name::<T>())
        }
    }
}

/// The first byte says which route the others are for.
fn bodies(bytes: &[u8]) -> String {
    let Some((kind, bytes)) = bytes.split_first() else {
        return "nothing".to_owned();
    };
    let said = match kind % 10 {
        0 => serde_json::from_slice::<TaskSpec>(bytes)
            .map_or_else(|error| error.to_string(), |spec| said(&spec.check())),
        1 => body::<Registration>(bytes),
        2 => body::<CloseRequest>(bytes),
        3 => body::<Signed<Enrol>>(bytes),
        4 => body::<Signed<Commit>>(bytes),
        5 => body::<Signed<WorkQuery>>(bytes),
        6 => body::<Signed<BlobRequest>>(bytes),
        7 => body::<Signed<WorkRecord>>(bytes),
        8 => body::<rpc::Request>(bytes),
        _ => body::<Signed<Report>>(bytes),
    };
    format!("{} {said}", kind % 10)
}

fn settings(bytes: &[u8]) -> String {
    said(&Config::read(&String::from_utf8_lossy(bytes), |_| None))
}

fn task(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    match task_file::check_text(&text, &parties()) {
        Ok(spec) => said(&spec.check()),
        Err(failure) => failure.to_string(),
    }
}

/// A file of these bytes: data comes from files only.
fn file(bytes: &[u8]) -> NamedTempFile {
    let written = NamedTempFile::new().and_then(|mut file| file.write_all(bytes).map(|()| file));
    written.expect("the temporary folder takes a small file")
}

/// What a loader says, without the names of the files, which differ from run to run.
fn loaded(source: &DataSource, files: &[&NamedTempFile]) -> String {
    let said = said(&load(source));
    files.iter().fold(said, |said, file| said.replace(&*file.path().to_string_lossy(), "FILE"))
}

fn csv(bytes: &[u8]) -> String {
    let file = file(bytes);
    let source = DataSource::Csv { file: file.path().to_owned(), label: "label".to_owned() };
    loaded(&source, &[&file])
}

/// Two files: the first byte says after how many bytes the labels begin.
fn idx(bytes: &[u8]) -> String {
    let (first, rest) = bytes.split_first().unwrap_or((&0, &[]));
    let (images, labels) = rest.split_at(rest.len().min(usize::from(*first)));
    let (images, labels) = (file(images), file(labels));
    let (a, b) = (images.path().to_owned(), labels.path().to_owned());
    loaded(&DataSource::Idx { images: a, labels: b }, &[&images, &labels])
}

/// A key file: its fields, and its key where that costs little.
fn keystore(bytes: &[u8]) -> String {
    match check_keystore(bytes) {
        Err(why) => why,
        Ok(cost) if cost.memory > CHEAP_BYTES || cost.rounds > CHEAP_ROUNDS => "dear".to_owned(),
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
