//! A market as the commands see it: its coordinator's interface, and tasks by shortened ids.

use std::ops::Deref;

use florin_ledger::{Ledger, LedgerError};
use florin_participant::{Client, ClientConfig, ClientError, Event, Patience, Shutdown, patiently};
use florin_protocol::{Report, Round, TaskId};

use crate::cli::MarketArg;
use crate::compose;
use crate::failure::Failure;

/// Fewest digits of a shortened id.
const ID_DIGITS_MIN: usize = 6;

/// A connection to a market.
#[derive(Debug)]
pub(crate) struct Market(Client);

impl Deref for Market {
    type Target = Client;
    fn deref(&self) -> &Client {
        &self.0
    }
}

impl Market {
    /// Connects to the market that a command was given.
    pub(crate) fn connect(arg: &MarketArg) -> anyhow::Result<Self> {
        Self::at(&arg.market)
    }

    /// Connects for a long stay: waits for a coordinator that is not there yet, or just restarts. `tell` hears why.
    pub(crate) fn connect_patiently(
        arg: &MarketArg,
        shutdown: &Shutdown,
        tell: &mut dyn FnMut(&Event),
    ) -> anyhow::Result<(Self, Box<dyn Ledger>)> {
        let mut told = |why: String| tell(&Event::Retrying { why });
        let config = ClientConfig { url: arg.market.clone(), pin: None };
        let client = patiently(
            Patience::default(),
            shutdown,
            |error: &ClientError| told(error.to_string()),
            || Client::connect(&config),
        )?;
        let ledger = patiently(
            Patience::default(),
            shutdown,
            |error: &LedgerError| told(error.to_string()),
            || compose::ledger(&arg.market),
        )?;
        Ok((Self(client), ledger))
    }

    /// Connects to the market at an address.
    pub(crate) fn at(url: &str) -> anyhow::Result<Self> {
        Ok(Self(Client::connect(&ClientConfig { url: url.to_owned(), pin: None })?))
    }

    /// The task that a whole or shortened id means.
    ///
    /// # Errors
    /// `BAD_ID`, `UNKNOWN_TASK`, `AMBIGUOUS_ID`.
    pub(crate) fn find(&self, text: &str) -> anyhow::Result<TaskId> {
        if let Ok(id) = text.parse::<TaskId>() {
            return Ok(id);
        }
        let digits = text.strip_prefix("0x").unwrap_or(text).to_ascii_lowercase();
        let hex = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        if !hex || digits.len() < ID_DIGITS_MIN || digits.len() > 64 {
            let message = format!(
                "{text:?} is no task id: write its 64 hexadecimal digits, or at least the first {ID_DIGITS_MIN}"
            );
            return Err(Failure::input("BAD_ID", message).into());
        }
        one_of(self.tasks()?.iter().map(|task| task.id), &digits)
    }

    /// Every report there is, first to last.
    pub(crate) fn reports(&self, task: TaskId) -> anyhow::Result<Vec<Report>> {
        let reported = self.task(task)?.reported;
        (1..=reported).map(|round| Ok(self.report(task, Round(round))?.body)).collect()
    }
}

fn one_of(ids: impl Iterator<Item = TaskId>, digits: &str) -> anyhow::Result<TaskId> {
    let found: Vec<TaskId> = ids.filter(|id| id.to_string().starts_with(digits)).collect();
    match found.as_slice() {
        [one] => Ok(*one),
        [] => {
            let message =
                format!("no task here begins with {digits}; `florin task list` shows them");
            Err(Failure::no("UNKNOWN_TASK", message).into())
        }
        many => {
            let many: Vec<String> = many.iter().map(ToString::to_string).collect();
            let message = format!("{digits} begins {} tasks: {}", many.len(), many.join(", "));
            Err(Failure::input("AMBIGUOUS_ID", message).into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortened_id_must_mean_one_task() {
        let ids = [TaskId([0xab; 32]), TaskId([0xac; 32])];
        assert_eq!(one_of(ids.into_iter(), "ababab").unwrap(), ids[0]);
        let code =
            |digits: &str| crate::failure::verdict(&one_of(ids.into_iter(), digits).unwrap_err()).0;
        assert_eq!(code("a"), "AMBIGUOUS_ID");
        assert_eq!(code("ff"), "UNKNOWN_TASK");
    }
}
