//! Forty hostile updates beside ten honest ones: each is rejected with its code and affects only
//! its sender. Under every aggregation rule the round is bit-identical to one without them.

use std::path::Path;

use axum::body::Body;
use florin_protocol::*;

use crate::support::*;
use crate::test_coordinator::{
    TestCoordinator, base_model, digits_spec, trained_update_on, update_header,
};

/// Senders 1 to 10 are honest, the others are hostile.
const HONEST: u8 = 10;

/// A hostile change of an update's safetensors bytes: name, expected code, function. The sender
/// commits to the changed bytes.
pub(crate) type HostileChange = (&'static str, ErrorCode, fn(SafetensorsBytes) -> Vec<u8>);

/// An update's safetensors header and data.
#[derive(Clone)]
pub(crate) struct SafetensorsBytes {
    header: String,
    pub(crate) data: Vec<u8>,
}

impl SafetensorsBytes {
    fn parse(whole: &[u8]) -> Self {
        let length = u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
        let header = String::from_utf8(whole[8..8 + length].to_vec()).unwrap();
        Self { header, data: whole[8 + length..].to_vec() }
    }

    fn length(&self) -> usize {
        8 + self.header.len() + self.data.len()
    }

    /// With this header instead and the same total length: spaces pad the header, or data is cut.
    fn with_header(&self, header: &[u8]) -> Vec<u8> {
        let length = self.length();
        let mut header = header.to_vec();
        header.resize(header.len().max(self.header.len()), b' ');
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(&header);
        bytes.extend_from_slice(&self.data);
        bytes.truncate(length);
        bytes
    }

    /// With these bytes at an offset of the data.
    pub(crate) fn set(mut self, at: usize, bytes: &[u8]) -> Vec<u8> {
        self.data[at..at + bytes.len()].copy_from_slice(bytes);
        self.with_header(self.header.clone().as_bytes())
    }

    /// With a part of the header changed.
    pub(crate) fn changed(&self, from: &str, to: &str) -> Vec<u8> {
        assert!(self.header.contains(from), "{from} is not in {}", self.header);
        self.with_header(self.header.replacen(from, to, 1).trim_end().as_bytes())
    }

    /// With a header that has only `first` and weights of this shape.
    fn only(&self, first: &str, shape: &str) -> Vec<u8> {
        let rest = format!("\"dtype\":\"F32\",\"shape\":{shape},\"data_offsets\":[0,2560]");
        self.with_header(format!("{{{first}\"layer0.weight\":{{{rest}}}}}").as_bytes())
    }

    /// With another declared header length.
    fn declared(&self, length: u64) -> Vec<u8> {
        let mut bytes = self.with_header(self.header.as_bytes());
        bytes[..8].copy_from_slice(&length.to_le_bytes());
        bytes
    }

    /// With each value changed by `change`.
    fn numbered(mut self, change: impl Fn(usize, f32) -> f32) -> Vec<u8> {
        for (at, number) in self.data.chunks_exact_mut(4).enumerate() {
            let value = f32::from_le_bytes((&*number).try_into().unwrap());
            number.copy_from_slice(&change(at, value).to_le_bytes());
        }
        self.with_header(self.header.clone().as_bytes())
    }

    fn first(self, value: f32) -> Vec<u8> {
        self.numbered(|at, number| if at == 0 { value } else { number })
    }

    fn filled(&self, with: &[u8]) -> Vec<u8> {
        let mut bytes = with.to_vec();
        bytes.resize(self.length(), 0);
        bytes
    }
}

const SCHEMA: ErrorCode = ErrorCode::UpdateWrongSchema;

const HOSTILE_CHANGES: [HostileChange; 40] = [
    ("a NaN first", ErrorCode::UpdateNotFinite, |b| b.first(f32::NAN)),
    ("a NaN last", ErrorCode::UpdateNotFinite, |b| {
        b.numbered(|at, number| if at == 649 { f32::NAN } else { number })
    }),
    ("a signalling NaN", ErrorCode::UpdateNotFinite, |b| b.first(f32::from_bits(0x7fa0_0000))),
    ("a negative NaN", ErrorCode::UpdateNotFinite, |b| b.first(f32::from_bits(0xffc0_0001))),
    ("only NaN", ErrorCode::UpdateNotFinite, |b| b.numbered(|_, _| f32::NAN)),
    ("an infinity", ErrorCode::UpdateNotFinite, |b| b.first(f32::INFINITY)),
    ("a negative infinity", ErrorCode::UpdateNotFinite, |b| b.first(f32::NEG_INFINITY)),
    ("both infinities", ErrorCode::UpdateNotFinite, |b| {
        b.numbered(|at, _| if at % 2 == 0 { f32::INFINITY } else { f32::NEG_INFINITY })
    }),
    ("one large number", ErrorCode::UpdateNormTooLarge, |b| b.first(1e6)),
    ("the largest number", ErrorCode::UpdateNormTooLarge, |b| b.first(f32::MAX)),
    ("only largest numbers", ErrorCode::UpdateNormTooLarge, |b| b.numbered(|_, _| f32::MAX)),
    ("a thousand times as long", ErrorCode::UpdateNormTooLarge, |b| {
        b.numbered(|_, n| n * 1e3 + 1.0)
    }),
    ("just beyond the norm", ErrorCode::UpdateNormTooLarge, |b| {
        b.numbered(|at, _| if at == 0 { 10.001 } else { 0.0 })
    }),
    ("a wrong name", SCHEMA, |b| b.changed("layer0.bias", "layer9.bias")),
    ("an empty name", SCHEMA, |b| b.changed("layer0.bias", "")),
    ("a name with a path", SCHEMA, |b| b.changed("layer0.bias", "../../etc/x")),
    ("the same name twice", SCHEMA, |b| b.changed("layer0.weight", "layer0.bias")),
    ("names exchanged", SCHEMA, |b| {
        let swapped = b.header.replace("bias", "x").replace("weight", "bias");
        b.with_header(swapped.replace('x', "weight").trim_end().as_bytes())
    }),
    ("a transposed shape", SCHEMA, |b| b.changed("[10,64]", "[64,10]")),
    ("a flattened shape", SCHEMA, |b| b.changed("[10,64]", "[640]")),
    ("a broadcast shape", SCHEMA, |b| b.changed("[10,64]", "[1]")),
    ("an empty shape", SCHEMA, |b| b.changed("[10,64]", "[]")),
    ("a negative dimension", SCHEMA, |b| b.changed("[10,64]", "[-1,64]")),
    ("dimensions that overflow", SCHEMA, |b| b.only("", "[4294967296,4294967296]")),
    ("integers", SCHEMA, |b| b.changed("\"F32\"", "\"I32\"")),
    ("double precision", SCHEMA, |b| b.changed("\"F32\"", "\"F64\"")),
    ("an unknown type", SCHEMA, |b| b.changed("\"F32\"", "\"X32\"")),
    ("tensors that overlap", SCHEMA, |b| b.changed("[2560,2600]", "[2556,2596]")),
    ("a gap between tensors", SCHEMA, |b| b.changed("[2560,2600]", "[2564,2604]")),
    ("an end before its begin", SCHEMA, |b| b.changed("[2560,2600]", "[2600,2560]")),
    ("an end beyond the bytes", SCHEMA, |b| b.changed("[2560,2600]", "[2560,9999]")),
    ("a tensor too few", SCHEMA, |b| b.only("", "[10,64]")),
    ("metadata", SCHEMA, |b| b.only("\"__metadata__\":{\"a\":\"b\"},", "[10,64]")),
    ("a list", SCHEMA, |b| b.with_header(b"[]")),
    ("a hundred nested lists", SCHEMA, |b| b.with_header("[".repeat(100).as_bytes())),
    ("invalid UTF-8", SCHEMA, |b| b.with_header(&[0xff; 64])),
    ("a header of 99 MB", ErrorCode::TooLarge, |b| b.declared(99_000_000)),
    ("a header without an end", ErrorCode::TooLarge, |b| b.declared(u64::MAX)),
    ("a pickle", ErrorCode::TooLarge, |b| {
        b.filled(b"\x80\x04\x95\x1a\0\0\0\0\0\0\0\x8c\x05posix\x94")
    }),
    ("only zeros", ErrorCode::TooLarge, |b| b.filled(&[])),
];

fn task(aggregation: Aggregation, format: UpdateFormat, spoils: &[HostileChange]) -> TaskSpec {
    let mut spec = digits_spec();
    spec.rounds.count = 1;
    spec.rounds.cohort_target = u32::from(senders(spoils));
    spec.rounds.cohort_min = 7;
    spec.rounds.aggregation = aggregation;
    spec.rounds.format = format;
    spec
}

fn senders(spoils: &[HostileChange]) -> u8 {
    HONEST + spoils.len() as u8
}

/// Plays a round in which all senders commit, the hostile ones to their changed bytes; the hostile
/// ones upload only if `attack` is set.
async fn round(folder: &Path, spec: TaskSpec, spoils: &[HostileChange], attack: bool) -> Report {
    let shop = TestCoordinator::open(folder, spec);
    let senders = senders(spoils);
    shop.bond(senders);
    shop.publish_for(senders).await;
    for i in 1..=senders {
        shop.enrol(i).await.unwrap();
    }
    let offer = shop.wait_for_phase(TaskPhase::Committing).await.offer.unwrap().body;
    let mut sent = Vec::new();
    for i in 1..=senders {
        let rows = if i <= HONEST { 100 * usize::from(i) } else { 100 };
        let rows = rows + 200..rows + 300;
        let plain = trained_update_on(&shop.spec, base_model(), rows, i);
        let delta = florin_work::decode_model(&shop.spec, &plain).unwrap();
        let seed = i.into();
        let mut bytes = florin_work::encode_update(&shop.spec, delta, None, seed).unwrap().bytes;
        if i > HONEST {
            bytes = spoils[usize::from(i - HONEST - 1)].2(SafetensorsBytes::parse(&bytes));
        }
        let header = update_header(&offer, i, 100, &bytes);
        shop.commit(&header, i).await.unwrap();
        sent.push((i, header, bytes));
    }
    shop.wait_for_phase(TaskPhase::Revealing).await;
    for (i, header, bytes) in &sent {
        if *i <= HONEST {
            shop.upload(header, bytes, *i).await.unwrap();
        } else if attack {
            let (name, code, _) = spoils[usize::from(i - HONEST - 1)];
            let refused = shop.upload(header, bytes, *i).await;
            let refused = refused.expect_err(name);
            assert_eq!(refused.code, code, "{name}: {refused}");
        }
    }
    shop.clock.set(offer.reveal_by.saturating_add_ms(1));
    shop.host.wake().await;
    while shop.view().await.reported == 0 {
        tokio::task::yield_now().await;
    }
    let path = format!("tasks/{}/rounds/1/report", shop.id);
    let report: Signed<Report> = shop.get(&path).await.unwrap();
    let (status, _) = shop.send("GET", "healthz", Body::empty()).await;
    assert!(!status.is_server_error());
    shop.stop().await;
    report.body
}

async fn check_aggregation(aggregation: Aggregation) {
    check_hostile_updates(aggregation, UpdateFormat::F32, &HOSTILE_CHANGES).await;
}

/// Plays the same round with and without the hostile updates, and compares the reports.
pub(crate) async fn check_hostile_updates(
    aggregation: Aggregation,
    format: UpdateFormat,
    spoils: &[HostileChange],
) {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let spec = task(aggregation, format, spoils);
    let attacked = round(here.path(), spec.clone(), spoils, true).await;
    let silent = round(there.path(), spec, spoils, false).await;
    assert_eq!(attacked.entries.len(), usize::from(HONEST));
    for (at, (name, code, _)) in (HONEST + 1..).zip(spoils) {
        let refused = MissingReason::Rejected(*code);
        assert!(attacked.missing.contains(&(address(at), refused)), "{name}");
        assert!(
            attacked.lines.iter().all(|line| line.account != address(at)),
            "{name} is not paid"
        );
    }
    let updates = |report: &Report| report.entries.iter().map(|e| e.update).collect::<Vec<_>>();
    assert_eq!(updates(&attacked), updates(&silent));
    assert_eq!(attacked.model, silent.model, "the aggregate is the same, bit for bit");
    assert_eq!(attacked.valuation, silent.valuation);
    assert_eq!((attacked.lines, attacked.root), (silent.lines, silent.root));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_updates_do_not_change_the_mean() {
    check_aggregation(Aggregation::Mean).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_updates_do_not_change_the_median() {
    check_aggregation(Aggregation::Median).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_updates_do_not_change_the_trimmed_mean() {
    check_aggregation(Aggregation::TrimmedMean { trim: "0.2".parse().unwrap() }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_updates_do_not_change_krum() {
    check_aggregation(Aggregation::Krum { byzantine: 2 }).await;
}
