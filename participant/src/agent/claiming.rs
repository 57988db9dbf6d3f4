//! After the task, or whenever its owner likes: draw what is owed, and have the bond back.

use std::time::Duration;

use florin_ledger::{Claim, Claimed, Ledger, LedgerError, Refusal};
use florin_protocol::merkle::Totals;
use florin_protocol::{Address, Amount, ClaimProof, Code, Digest, Signer, TaskId, Tick, merkle};

use super::{Agent, AgentError};
use crate::client::{Client, ClientError};
use crate::event::Event;

/// What a claim came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drawn {
    /// Paid now; zero where everything was paid before.
    pub paid: Amount,
    /// Taken now from the account's bond, for debits that the same proof shows.
    pub taken: Amount,
    /// What the final settlements of the task have come to for this account in all.
    pub totals: Totals,
}

/// Why nothing could be drawn.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    /// The coordinator's proof does not lead to the ledger's root.
    #[error(
        "task {task}: the coordinator's proof of {} FLN paid and {} FLN debited does not lead to \
         the final root on the ledger",
        totals.paid,
        totals.debited
    )]
    BadProof {
        /// The task.
        task: TaskId,
        /// The running totals that it was to prove.
        totals: Totals,
    },
    /// The proof is of another final root than the ledger's: a settlement has just become final.
    #[error(
        "task {task}: the coordinator proves by root {proven}, but the ledger's final root is \
         {held}; one of them will catch up: try again"
    )]
    NotCurrent {
        /// The task.
        task: TaskId,
        /// The root of the coordinator's proof.
        proven: Digest,
        /// The ledger's final root.
        held: Digest,
    },
    /// The coordinator.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The ledger.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

impl ClaimError {
    /// The stable code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::BadProof { .. } => "BAD_PROOF",
            Self::NotCurrent { .. } => "PROOF_NOT_CURRENT",
            Self::Client(error) => error.code(),
            Self::Ledger(error) => crate::ledger_code(error),
        }
    }
}

impl crate::retry::Passing for ClaimError {
    fn is_passing(&self) -> bool {
        match self {
            Self::BadProof { .. } => false,
            Self::NotCurrent { .. } => true,
            Self::Client(error) => error.is_passing(),
            Self::Ledger(error) => error.is_passing(),
        }
    }
}

/// Proves for `account` everything that the task's final settlements have come to and that is not
/// proven yet: draws what it is owed, and has the debits taken from its bond. `by` signs and sends;
/// the tokens go to `account` in any case. It may be called whenever a settlement is final: while
/// the task runs, and after it. Again: nothing happens.
///
/// # Errors
/// [`ClaimError`]. After [`LedgerError::Unavailable`] and [`ClaimError::NotCurrent`] it may be
/// called again.
pub fn claim(
    client: &Client,
    ledger: &dyn Ledger,
    by: &dyn Signer,
    task: TaskId,
    account: Address,
) -> Result<Drawn, ClaimError> {
    let is_new =
        |now: Totals, before: Totals| now.paid > before.paid || now.debited > before.debited;
    claim_if(client, ledger, by, (task, account), is_new)
}

/// The same where pay is owed: what would only take from the bond is left to the coordinator, which
/// proves it in any case.
///
/// # Errors
/// As [`claim`].
pub(crate) fn draw_pay(
    client: &Client,
    ledger: &dyn Ledger,
    by: &dyn Signer,
    task: TaskId,
    account: Address,
) -> Result<Drawn, ClaimError> {
    claim_if(client, ledger, by, (task, account), |now, before| now.paid > before.paid)
}

fn claim_if(
    client: &Client,
    ledger: &dyn Ledger,
    by: &dyn Signer,
    (task, account): (TaskId, Address),
    worth: impl Fn(Totals, Totals) -> bool,
) -> Result<Drawn, ClaimError> {
    let proof = match client.proof(task, account) {
        // Nothing is final, so nothing is owed.
        Err(ClientError::Rejected(rejection)) if rejection.code == Code::NotYetPublic => {
            return Ok(Drawn::default());
        }
        other => other?,
    };
    claim_proven(ledger, by, (task, account), proof, worth)
}

/// Draws by a proof what it says is owed and was not drawn, as the agent does while a task runs and at its end.
///
/// # Errors
/// As [`claim`].
pub fn draw_by_proof(
    ledger: &dyn Ledger,
    by: &dyn Signer,
    task: TaskId,
    proof: ClaimProof,
) -> Result<Drawn, ClaimError> {
    claim_proven(ledger, by, (task, by.address()), proof, |now, before| now.paid > before.paid)
}

fn claim_proven(
    ledger: &dyn Ledger,
    by: &dyn Signer,
    (task, account): (TaskId, Address),
    proof: ClaimProof,
    worth: impl Fn(Totals, Totals) -> bool,
) -> Result<Drawn, ClaimError> {
    let totals = proof.totals;
    let nothing = Drawn { totals, ..Drawn::default() };
    if !worth(totals, ledger.claimed(task, account)?) {
        return Ok(nothing);
    }
    let root = ledger.task(task)?.map(|state| state.root).unwrap_or_default();
    if root != proof.root {
        return Err(ClaimError::NotCurrent { task, proven: proof.root, held: root });
    }
    if !merkle::verify(root, account, totals, &proof.proof) {
        return Err(ClaimError::BadProof { task, totals });
    }
    let claim = Claim { task, account, totals, proof: proof.proof };
    match ledger.claim(by, &claim) {
        Ok(Claimed { paid, taken }) => Ok(Drawn { paid, taken, totals }),
        // Somebody else sent it, or an earlier try arrived after all.
        Err(LedgerError::Refused(Refusal::NothingToClaim)) => Ok(nothing),
        // The next settlement became final since the root was read.
        Err(LedgerError::Refused(Refusal::BadProof)) => {
            let held = ledger.task(task)?.map(|state| state.root).unwrap_or_default();
            match held == root {
                true => Err(ClaimError::BadProof { task, totals }),
                false => Err(ClaimError::NotCurrent { task, proven: root, held }),
            }
        }
        Err(error) => Err(error.into()),
    }
}

/// Where a bond is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bond {
    /// Nobody asked for it back.
    Untouched,
    /// There is none.
    None,
    /// Back in the wallet.
    Returned(Amount),
    /// Asked back, and at risk until then.
    Held(Tick),
}

/// Asks for the bond back and takes it where that is possible: when the task is closed, without
/// asking. What was posted last is waited for in any case, until everybody has had the time to prove
/// what it debits. Again: goes on where it was.
///
/// # Errors
/// [`LedgerError`].
pub fn return_bond(
    ledger: &dyn Ledger,
    by: &dyn Signer,
    task: TaskId,
) -> Result<Bond, LedgerError> {
    let account = by.address();
    let there = ledger.bond_of(task, account)?;
    if there.amount.is_zero() {
        return Ok(Bond::None);
    }
    let closed = ledger.task(task)?.is_some_and(|state| state.closed);
    if there.release.is_none() && !closed {
        ledger.unbond(by, task)?;
    }
    match ledger.withdraw_bond(by, task) {
        Ok(amount) => Ok(Bond::Returned(amount)),
        Err(LedgerError::Refused(Refusal::TooEarly { at, .. })) => Ok(Bond::Held(at)),
        // An earlier try arrived after all.
        Err(LedgerError::Refused(Refusal::Missing(_)))
            if ledger.bond_of(task, account)?.amount.is_zero() =>
        {
            Ok(Bond::Returned(there.amount))
        }
        Err(error) => Err(error),
    }
}

impl Agent<'_, '_> {
    /// Draws what is final by now, while the task goes on. Whatever goes wrong is told and no end:
    /// there is another occasion, the last at the end.
    pub(super) fn draw_meanwhile(&mut self, finalised: u32) {
        self.drawn_at = finalised;
        let (client, ledger) = (self.parts.client, self.parts.ledger);
        match draw_pay(client, ledger, self.parts.wallet, self.config.task, self.me) {
            Ok(drawn) if drawn.paid.is_zero() => {}
            Ok(drawn) => self.drew(drawn),
            Err(error) => self.tell(&super::retrying(&error)),
        }
    }

    fn drew(&mut self, drawn: Drawn) {
        self.claimed = self.claimed.plus(drawn.paid).unwrap_or(self.claimed);
        self.tell(&Event::Claimed { task: self.config.task, drawn });
    }

    /// Draws what the task owes.
    pub(super) fn draw(&mut self) -> Result<(), AgentError> {
        let (client, ledger) = (self.parts.client, self.parts.ledger);
        let (wallet, task, me) = (self.parts.wallet, self.config.task, self.me);
        let tell = &mut self.tell;
        let drawn = super::patiently(
            self.config.patience,
            self.shutdown,
            |error: &ClaimError| {
                tell(&super::retrying(error));
                if matches!(error, ClaimError::Ledger(_)) {
                    crate::retry::see_through(ledger, wallet);
                }
            },
            || draw_pay(client, ledger, wallet, task, me),
        );
        let drawn = drawn.map_err(|error| match error {
            ClaimError::Client(error) => error.into(),
            ClaimError::Ledger(error) => AgentError::from(error),
            error @ (ClaimError::BadProof { .. } | ClaimError::NotCurrent { .. }) => {
                AgentError::BadTask { task, why: error.to_string() }
            }
        })?;
        if !drawn.totals.paid.is_zero() {
            self.drew(drawn);
        }
        Ok(())
    }

    /// Takes the bond out of the task; where it is held, waits for it, or until it is asked to stop.
    pub(super) fn have_bond_back(&mut self) -> Result<Bond, AgentError> {
        let (ledger, wallet, task) = (self.parts.ledger, self.parts.wallet, self.config.task);
        let mut told = None;
        loop {
            let bond = self.with_ledger(|| return_bond(ledger, wallet, task))?;
            let Bond::Held(until) = bond else {
                if let Bond::Returned(amount) = bond {
                    self.tell(&Event::BondReturned { amount });
                }
                return Ok(bond);
            };
            if told != Some(until) {
                self.tell(&Event::BondHeld { until });
                told = Some(until);
            }
            let left = until.ms_since(self.with_ledger(|| ledger.now())?);
            self.shutdown.wait(Duration::from_millis(left.clamp(1, self.config.poll_ms.max(1))));
            if self.shutdown.requested() {
                return Ok(bond);
            }
        }
    }
}
