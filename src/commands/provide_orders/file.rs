//! The policy file of `florin provide --orders`: TOML, in which an unknown key is an error.

use std::collections::BTreeSet;
use std::path::Path;

use florin_compute::DataClass;
use florin_participant::leases::{AuditRule, BidRule, LeasePolicy};
use florin_protocol::{Address, Amount};
use serde::Deserialize;

use super::executors::{ExecutorPlan, ExecutorsTable};
use super::value::ValueTable;
use crate::cli::ExecutorKind;
use crate::failure::Failure;
use crate::small_file::SmallFile;
use crate::task_file::parse_ms;
use crate::toml_words::in_words;

/// The file.
const FILE: SmallFile = SmallFile { kind: "a policy", code: "INVALID_POLICY", bytes_max: 1 << 20 };
/// Bytes of a mebibyte.
const MIB: u64 = 1 << 20;
/// Leases that are computed at a time, unless the file has another number.
const ORDERS_AT_ONCE: u32 = 1;

/// The whole file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct OrdersFile {
    #[serde(default)]
    referees: Vec<Address>,
    #[serde(default)]
    referee: bool,
    hours: Option<String>,
    challenge_min: Option<String>,
    window_min: Option<String>,
    segments_max: Option<u32>,
    job_mib_max: Option<u64>,
    state_mib_max: Option<u64>,
    checkpoint_mib_max: Option<u64>,
    data_classes: Option<BTreeSet<DataClass>>,
    bid: Option<BidTable>,
    audit: Option<AuditTable>,
    value: Option<ValueTable>,
    executors: Option<ExecutorsTable>,
}

/// A policy, with its executors, and the rounds of tasks that are valued beside orders.
#[derive(Debug)]
pub(super) struct OrdersPolicy {
    pub(super) policy: LeasePolicy,
    pub(super) executors: Option<ExecutorPlan>,
    pub(super) value: Option<ValueTable>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct BidTable {
    per_hour: Amount,
    stake_max: Amount,
    orders_max: Option<u32>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AuditTable {
    fee_min: Amount,
    bond_max: Amount,
}

/// Reads a policy file; `backend` is that of the command line.
///
/// # Errors
/// [`Failure`] with code `INVALID_POLICY`.
pub(super) fn read(path: &Path, backend: Option<ExecutorKind>) -> anyhow::Result<OrdersPolicy> {
    let shown = path.display();
    let text = FILE.read(path)?;
    let invalid = |why: String| Failure::input("INVALID_POLICY", format!("{shown}: {why}"));
    Ok(from_text(&text, backend).map_err(invalid)?)
}

fn from_text(text: &str, backend: Option<ExecutorKind>) -> Result<OrdersPolicy, String> {
    let file: OrdersFile =
        toml::from_str(text).map_err(|error| in_words(error.to_string().trim()))?;
    let defaults = LeasePolicy::none();
    let ms = |key: &str, text: Option<&str>, default: u64| match text {
        None => Ok(default),
        Some(text) => parse_ms(text).map_err(|why| format!("{key}: {why}")),
    };
    let bytes = |key: &str, mib: Option<u64>, default: u64| match mib {
        None => Ok(default),
        Some(0) => Err(format!("{key} = 0: use 1 MiB or more")),
        Some(mib) => mib.checked_mul(MIB).ok_or_else(|| format!("{key} = {mib}: use fewer MiB")),
    };
    let bid = file.bid.map(|BidTable { per_hour, stake_max, orders_max }| BidRule {
        per_hour,
        stake_max,
        orders_max: orders_max.unwrap_or(ORDERS_AT_ONCE),
    });
    let audit = file.audit.map(|AuditTable { fee_min, bond_max }| AuditRule { fee_min, bond_max });
    let executors = match (file.executors, backend) {
        (None, None) => None,
        (table, backend) => Some(table.unwrap_or_default().plan(backend)?),
    };
    let policy = LeasePolicy {
        bid,
        audit,
        hours: file.hours.as_deref().map(str::parse).transpose()?,
        referee: file.referee,
        referees: file.referees,
        challenge_min_ms: ms(
            "challenge_min",
            file.challenge_min.as_deref(),
            defaults.challenge_min_ms,
        )?,
        window_min_ms: ms("window_min", file.window_min.as_deref(), defaults.window_min_ms)?,
        segments_max: file.segments_max.unwrap_or(defaults.segments_max),
        job_bytes_max: bytes("job_mib_max", file.job_mib_max, defaults.job_bytes_max)?,
        data_classes: file.data_classes.unwrap_or(defaults.data_classes),
        state_bytes_max: bytes("state_mib_max", file.state_mib_max, defaults.state_bytes_max)?,
        checkpoint_bytes_max: match file.checkpoint_mib_max {
            Some(0) => 0,
            mib => bytes("checkpoint_mib_max", mib, defaults.checkpoint_bytes_max)?,
        },
        executors: executors.as_ref().map(|plan| plan.supply),
    };
    policy.check().map_err(|error| error.to_string())?;
    file.value.as_ref().map_or(Ok(()), ValueTable::check)?;
    Ok(OrdersPolicy { policy, executors, value: file.value })
}

#[cfg(test)]
mod tests {
    use florin_participant::policy::DailyHours;

    use super::*;

    fn from_text(text: &str) -> Result<LeasePolicy, String> {
        super::from_text(text, None).map(|read| read.policy)
    }

    const SHORT: &str = "referees = [\"0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed\"]\n\
                         [bid]\nper_hour = \"3.6\"\nstake_max = \"100\"\n";

    #[test]
    fn a_policy_has_defaults() {
        let policy = from_text(SHORT).unwrap();
        let bid = policy.bid.unwrap();
        assert_eq!((bid.per_hour, bid.orders_max), ("3.6".parse().unwrap(), 1));
        assert_eq!((policy.audit, policy.referee, policy.challenge_min_ms), (None, false, 600_000));
        assert_eq!((policy.job_bytes_max, policy.segments_max), (1 << 30, 10_000));
        assert_eq!(policy.window_min_ms, 30_000);
        let long = "referee = true\nhours = \"22..6\"\nchallenge_min = \"2 s\"\nwindow_min = \"3 s\"\nsegments_max = 50\njob_mib_max = 8\n\
                    state_mib_max = 16\n";
        let policy = from_text(&format!(
            "{long}{SHORT}orders_max = 2\n[audit]\nfee_min = \"0.1\"\n\
                                         bond_max = \"5\"\n"
        ));
        let policy = policy.unwrap();
        assert_eq!((policy.challenge_min_ms, policy.segments_max), (2_000, 50));
        assert_eq!(policy.window_min_ms, 3_000);
        assert_eq!((policy.job_bytes_max, policy.state_bytes_max), (8 << 20, 16 << 20));
        assert_eq!(policy.checkpoint_bytes_max, 64 << 20);
        for (mib, bytes) in [(0, 0), (3, 3 << 20)] {
            let other = from_text(&format!("checkpoint_mib_max = {mib}\n{SHORT}")).unwrap();
            assert_eq!(other.checkpoint_bytes_max, bytes);
        }
        assert_eq!(policy.hours, Some(DailyHours { from: 22, to: 6 }));
        assert!(policy.referee && policy.bid.unwrap().orders_max == 2);
        assert_eq!(policy.audit.unwrap().bond_max, "5".parse().unwrap());
        assert!(from_text("referee = true\n").is_ok());
        let all = [DataClass::Public, DataClass::Buyer, DataClass::Private];
        assert_eq!(policy.data_classes, all.into());
        let few = format!("data_classes = [\"public\", \"buyer\"]\n{SHORT}");
        let few = from_text(&few).unwrap().data_classes;
        assert_eq!(few, [DataClass::Public, DataClass::Buyer].into());
    }

    #[test]
    fn a_mistake_is_named() {
        for (old, new, part) in [
            ("per_hour", "per_day", "per_day"),
            ("\"3.6\"", "\"many\"", "per_hour"),
            ("\"100\"", "\"0\"", "stake_max"),
            ("referees", "referies", "referies"),
            ("referees", "challenge_min = \"soon\"\nreferees", "challenge_min"),
            ("referees", "window_min = \"soon\"\nreferees", "window_min"),
            ("referees", "hours = \"24..6\"\nreferees", "22..6"),
            ("referees", "window_min = \"0 s\"\nreferees", "window_min"),
            ("referees", "segments_max = 0\nreferees", "segments_max"),
            ("referees", "job_mib_max = 99999999999999999\nreferees", "job_mib_max"),
            ("referees", "state_mib_max = 0\nreferees", "state_mib_max"),
            ("referees", "data_classes = []\nreferees", "data_classes"),
            ("referees", "data_classes = [\"secret\"]\nreferees", "secret"),
            ("\"100\"", "\"100\"\norders_max = 9", "orders_max"),
            ("\"100\"", "\"100\"\norders_max = 2\n[executors]\ndevices = 1", "bid.orders_max"),
            ("\"100\"", "\"100\"\n[executors]\ndevices = 0", "executors.devices"),
            ("\"100\"", "\"100\"\n[executors]\ncores = 1", "cores"),
            ("\"100\"", "\"100\"\n[executors]\nbackend = \"lsf\"", "lsf"),
            ("[\"0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed\"]", "[]", "referees"),
            ("[bid]", "[bids]", "bids"),
            ("[bid]", "[value]\nstake_max = \"20\"\n[bid]", "value.arbiters"),
            (
                "[bid]",
                "[value]\nstake_max = \"0\"\ntrust_coordinator = true\n[bid]",
                "value.stake_max",
            ),
            (
                "[bid]",
                "[value]\nstake_max = \"2\"\ntrust_coordinator = true\ntasks = []\n[bid]",
                "value.tasks",
            ),
            ("[bid]", "[value]\nstake = \"2\"\n[bid]", "stake"),
        ] {
            let text = SHORT.replacen(old, new, 1);
            let why = from_text(&text).unwrap_err();
            assert!(why.contains(part), "{part:?} is not in {why:?}");
        }
        assert!(from_text("").unwrap_err().contains("no role"));
        let value = "[value]\nstake_max = \"20\"\ntrust_coordinator = true\n[bid]";
        let read = super::from_text(&SHORT.replace("[bid]", value), None).unwrap();
        assert!(read.value.is_some() && super::from_text(SHORT, None).unwrap().value.is_none());
    }
}
