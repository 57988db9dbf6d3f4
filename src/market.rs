//! A market as the commands see it: a connection to its coordinator, and the lookup of tasks by
//! shortened ids.

use std::ops::Deref;
use std::path::{Path, PathBuf};

use anyhow::Context;
use florin_ledger::{Ledger, LedgerError, RemoteLedger, TrustAnchors};
use florin_participant::{
    Backoff, Client, ClientConfig, ClientError, ParticipantEvent, Shutdown, Transient, Wallet,
    is_local_market, retry_with_backoff,
};
use florin_protocol::{Digest, LedgerInfo, Report, RoundNumber, TaskId};

use crate::cli::{MarketArg, WalletArg, WeightsArg};
use crate::compose;
use crate::failure::Failure;

/// Minimum number of digits of a shortened id.
const ID_DIGITS_MIN: usize = 6;

/// A connection to a market.
#[derive(Debug)]
pub(crate) struct MarketConnection {
    client: Client,
    at: MarketArg,
}

impl Deref for MarketConnection {
    type Target = Client;
    fn deref(&self) -> &Client {
        &self.client
    }
}

/// An error of a command, for the retry loop.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
struct CommandError(anyhow::Error);

impl Transient for CommandError {
    fn is_transient(&self) -> bool {
        let Self(error) = self;
        error.downcast_ref::<LedgerError>().is_some_and(Transient::is_transient)
            || error.downcast_ref::<ClientError>().is_some_and(Transient::is_transient)
    }
}

/// Calls `attempt` until it succeeds, for a long-running command: waits while the coordinator is
/// starting or restarting. `on_event` receives an event for each retry.
///
/// # Errors
/// The last error of `attempt`.
pub(crate) fn with_retries<T>(
    shutdown: &Shutdown,
    on_event: &mut dyn FnMut(&ParticipantEvent),
    mut attempt: impl FnMut() -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let result = retry_with_backoff(
        Backoff::default(),
        shutdown,
        |error: &CommandError| on_event(&ParticipantEvent::Retrying { why: error.to_string() }),
        || attempt().map_err(CommandError),
    );
    result.map_err(|CommandError(error)| error)
}

impl MarketConnection {
    /// Connects to the market that the arguments name.
    pub(crate) fn connect(at: &MarketArg) -> anyhow::Result<Self> {
        let client = Client::connect(&config(at)?)?;
        Ok(Self { client, at: at.clone() })
    }

    /// As [`connect`](Self::connect), for a long-running command; see [`with_retries`].
    pub(crate) fn connect_with_retries(
        at: &MarketArg,
        shutdown: &Shutdown,
        on_event: &mut dyn FnMut(&ParticipantEvent),
    ) -> anyhow::Result<Self> {
        with_retries(shutdown, on_event, || Self::connect(at))
    }

    /// The same connection, with another place of a model's frozen weights.
    pub(crate) fn with_weights(self, arguments: &WeightsArg) -> Self {
        Self { client: self.client.with_weights(arguments.weights.clone()), ..self }
    }

    /// The same connection, with other arguments for its ledger.
    pub(crate) fn at(self, at: MarketArg) -> Self {
        Self { at, ..self }
    }

    /// The client of the coordinator's interface.
    pub(crate) const fn client(&self) -> &Client {
        &self.client
    }

    /// Connects to the market's embedded ledger.
    ///
    /// # Errors
    /// `LEDGER_NOT_EMBEDDED`, and those of [`compose::embedded`].
    pub(crate) fn embedded_ledger(&self) -> anyhow::Result<RemoteLedger> {
        if *self.client.ledger() != LedgerInfo::Embedded {
            let message = format!(
                "the market at {} has its ledger on Ethereum, where a node of the chain shows the \
                 blocks",
                self.at.market
            );
            return Err(Failure::input("LEDGER_NOT_EMBEDDED", message).into());
        }
        compose::embedded(&self.client, &self.at.market, &self.at.node)
    }

    /// Opens the market's ledger for reading.
    pub(crate) fn ledger(&self) -> anyhow::Result<Box<dyn Ledger>> {
        compose::ledger(&self.client, &self.at.market, &self.at.node)
    }

    /// Opens the market's ledger for a wallet that writes.
    pub(crate) fn signing_ledger(
        &self,
        wallet: &Wallet,
        arg: &WalletArg,
    ) -> anyhow::Result<Box<dyn Ledger>> {
        let by = (wallet, arg.wallet.as_path());
        compose::signing_ledger(&self.client, &self.at.market, &self.at.node, by)
    }

    /// Finds a task by its whole or shortened id.
    ///
    /// # Errors
    /// `INVALID_ID`, `UNKNOWN_TASK`, `AMBIGUOUS_ID`.
    pub(crate) fn find(&self, text: &str) -> anyhow::Result<TaskId> {
        find_task(text, || Ok(self.tasks()?.iter().map(|task| task.id).collect()))
    }

    /// Finds an order by its whole or shortened id.
    ///
    /// # Errors
    /// `INVALID_ID`, `UNKNOWN_ORDER`, `AMBIGUOUS_ID`.
    pub(crate) fn find_order(&self, text: &str) -> anyhow::Result<Digest> {
        let known = || Ok(self.orders()?.iter().map(|order| TaskId(order.id.0)).collect());
        Ok(Digest(find(&ORDERS, text, known)?.0))
    }

    /// Fetches all reports of a task, in order.
    pub(crate) fn reports(&self, task: TaskId) -> anyhow::Result<Vec<Report>> {
        let reported = self.task(task)?.reported;
        (1..=reported).map(|round| Ok(self.report(task, RoundNumber(round))?.body)).collect()
    }
}

/// The coordinator's URL and the trusted certificates.
///
/// # Errors
/// `CERTIFICATE_NOT_NEEDED`, and those of reading the file.
fn config(at: &MarketArg) -> anyhow::Result<ClientConfig> {
    let trust = match &at.trust.certificate {
        None => TrustAnchors::from_system(),
        Some(_) if !at.market.starts_with("https://") => {
            let message = format!(
                "--certificate (FLORIN_CERTIFICATE) needs an https:// address, but {} is not \
                 encrypted: any host on the path could read and change the traffic",
                at.market
            );
            return Err(Failure::input("CERTIFICATE_NOT_NEEDED", message).into());
        }
        Some(file) => {
            let named = || file.display().to_string();
            let text = std::fs::read(file).with_context(named)?;
            TrustAnchors::from_pem(&text).with_context(named)?
        }
    };
    let pin_file = pin_file(&at.market, at.trust.pins.as_deref());
    Ok(ClientConfig { trust, pin_file, ..ClientConfig::new(&at.market) })
}

/// The file that records a market's coordinator: in `pins`, or otherwise, unless the market is on
/// this machine, in the user's state folder.
fn pin_file(url: &str, pins: Option<&Path>) -> Option<PathBuf> {
    let folder = match pins {
        Some(folder) => folder.to_owned(),
        None if is_local_market(url) => return None,
        None => state_folder()?.join("florin").join("markets"),
    };
    let (scheme, rest) = url.trim_end_matches('/').split_once("://")?;
    let readable = |c: char| if c.is_ascii_alphanumeric() || ".-".contains(c) { c } else { '_' };
    let host: String = rest.to_ascii_lowercase().chars().map(readable).collect();
    Some(folder.join(format!("{}-{host}.json", scheme.to_ascii_lowercase())))
}

/// The user's folder for state that outlives a run (XDG Base Directory Specification).
fn state_folder() -> Option<PathBuf> {
    let folder = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let set = folder("XDG_STATE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    set.or_else(|| Some(PathBuf::from(folder("HOME")?).join(".local").join("state")))
}

/// The task that a whole or shortened id names. `known` lists the tasks; a whole id needs no list.
///
/// # Errors
/// `INVALID_ID`, `UNKNOWN_TASK`, `AMBIGUOUS_ID`, and those of `known`.
pub(crate) fn find_task(
    text: &str,
    known: impl FnOnce() -> anyhow::Result<Vec<TaskId>>,
) -> anyhow::Result<TaskId> {
    find(&TASKS, text, known)
}

/// The things that ids name.
struct IdKind {
    noun: &'static str,
    /// The command that lists them.
    list: &'static str,
    /// The code of an unknown one.
    unknown: &'static str,
}

const TASKS: IdKind = IdKind { noun: "task", list: "florin task list", unknown: "UNKNOWN_TASK" };
const ORDERS: IdKind = IdKind { noun: "order", list: "florin market", unknown: "UNKNOWN_ORDER" };

fn find(
    kind: &IdKind,
    text: &str,
    known: impl FnOnce() -> anyhow::Result<Vec<TaskId>>,
) -> anyhow::Result<TaskId> {
    let noun = kind.noun;
    if let Ok(id) = text.parse::<TaskId>() {
        return Ok(id);
    }
    let digits = text.strip_prefix("0x").unwrap_or(text).to_ascii_lowercase();
    let hex = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    if !hex || digits.len() < ID_DIGITS_MIN || digits.len() > 64 {
        let message = format!(
            "{text:?} is no {noun} id: write its 64 hexadecimal digits, or at least the first \
             {ID_DIGITS_MIN}"
        );
        return Err(Failure::input("INVALID_ID", message).into());
    }
    unique_match(kind, known()?.into_iter(), &digits)
}

fn unique_match(
    kind: &IdKind,
    ids: impl Iterator<Item = TaskId>,
    digits: &str,
) -> anyhow::Result<TaskId> {
    let IdKind { noun, list, unknown } = kind;
    let found: Vec<TaskId> = ids.filter(|id| id.to_string().starts_with(digits)).collect();
    match found.as_slice() {
        [one] => Ok(*one),
        [] => {
            let message = format!("no {noun} id starts with {digits}: `{list}` prints all ids");
            Err(Failure::negative(unknown, message).into())
        }
        many => {
            let many: Vec<String> = many.iter().map(ToString::to_string).collect();
            let message = format!(
                "{digits} is the start of {} {noun} ids, write more digits: {}",
                many.len(),
                many.join(", ")
            );
            Err(Failure::input("AMBIGUOUS_ID", message).into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_markets_of_other_machines_are_recorded_by_default() {
        let named = |url| pin_file(url, Some(Path::new("pins")));
        let host = named("https://Market.example:7700/").unwrap();
        assert_eq!(host, Path::new("pins/https-market.example_7700.json"));
        assert_eq!(named("https://market.example:7700"), Some(host));
        assert!(named("http://127.0.0.1:7700").is_some(), "a folder that is named holds all");
        assert_eq!(pin_file("http://127.0.0.1:7700", None), None);
        assert!(pin_file("http://10.0.0.7:7700", None).is_some());
    }

    #[test]
    fn a_shortened_id_must_match_exactly_one_task() {
        let ids = [TaskId([0xab; 32]), TaskId([0xac; 32])];
        assert_eq!(unique_match(&TASKS, ids.into_iter(), "ababab").unwrap(), ids[0]);
        let code = |digits: &str| {
            crate::failure::classify(&unique_match(&TASKS, ids.into_iter(), digits).unwrap_err()).0
        };
        assert_eq!(code("a"), "AMBIGUOUS_ID");
        assert_eq!(code("ff"), "UNKNOWN_TASK");
    }
}
