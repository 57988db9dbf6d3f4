//! Before the rounds: the first blobs, and the enrolment of participants.

use alloc::format;

use florin_protocol::limits::ENROLLED_MAX;
use florin_protocol::{
    Address, Admission, Amount, Digest, EnrolRequest, ErrorCode, Invitation, Rejection, Role,
    RoundNumber, TaskId, TaskSpec, Timestamp,
};

use super::event::EventStatus;
use super::rejection::{expired, reject};
use super::state::{TaskStage, TaskState};
use super::{Engine, SIT_OUT_ROUNDS};

impl Engine {
    pub(super) fn check_blob(&self, id: TaskId, digest: Digest) -> Result<EventStatus, Rejection> {
        let task = self.task(id)?;
        if task.missing_blobs.contains(&digest) {
            task.check_awaits_blobs()?;
            return Ok(EventStatus::New);
        }
        if task.spec.blobs().any(|blob| blob == digest) {
            return Ok(EventStatus::Duplicate);
        }
        reject(ErrorCode::NotFound, format!("task {} is not waiting for blob {digest}", id.short()))
    }

    /// A task's commitment fixes its holdout, so a second upload is a duplicate.
    pub(super) fn check_holdout(&self, id: TaskId) -> Result<EventStatus, Rejection> {
        let task = self.task(id)?;
        if task.holdout.is_some() {
            return Ok(EventStatus::Duplicate);
        }
        task.check_awaits_blobs()?;
        Ok(EventStatus::New)
    }

    pub(super) fn check_enrolled(
        &self,
        enrol: &EnrolRequest,
        bond: Amount,
        now: Timestamp,
    ) -> Result<EventStatus, Rejection> {
        self.check_market(enrol.market)?;
        let task = self.task(enrol.task)?;
        self.require_registration(enrol.sender, Role::Participant)?;
        if now > enrol.expires {
            return expired("the enrolment", enrol.expires, now);
        }
        if task.is_over() {
            return reject(ErrorCode::TaskClosed, format!("task {} is over", enrol.task.short()));
        }
        task.check_admitted(enrol, now)?;
        let renews = self.renews_deposit((enrol.sender, Role::Participant), enrol.task, bond, now);
        let bond = task.bond_at_risk(enrol.sender, bond)?;
        match task.enrolled.get(&enrol.sender) {
            Some(known)
                if *known == bond
                    && !task.must_enrol_again(enrol.sender)
                    && !renews
                    && !self.changes_limit(enrol) =>
            {
                Ok(EventStatus::Duplicate)
            }
            None if task.enrolled.len() >= ENROLLED_MAX => reject(
                ErrorCode::TaskFull,
                format!("a task takes at most {ENROLLED_MAX} participants"),
            ),
            _ => Ok(EventStatus::New),
        }
    }
}

impl TaskState {
    /// Checks that the task admits the sender. An enrolled account stays admitted.
    fn check_admitted(&self, enrol: &EnrolRequest, now: Timestamp) -> Result<(), Rejection> {
        let (who, admission) = (enrol.sender, &self.spec.admission);
        if self.enrolled.contains_key(&who) || admission.admits(who) {
            return Ok(());
        }
        match (admission, &enrol.invitation) {
            (Admission::Invitation, Some(invitation)) => {
                self.check_invitation(invitation, who, now)
            }
            (Admission::Invitation, None) => reject(
                ErrorCode::NotAdmitted,
                format!(
                    "task {} admits invited accounts only: ask its buyer, {}, for an invitation \
                     and enrol with it (`florin participate --invitation`)",
                    self.id.short(),
                    self.spec.buyer
                ),
            ),
            (Admission::Open | Admission::AllowList { .. }, _) => reject(
                ErrorCode::NotAdmitted,
                format!(
                    "{who} is not in the allow list of task {}: use a listed account, or ask the \
                     buyer, {}, for a task that lists yours",
                    self.id.short(),
                    self.spec.buyer
                ),
            ),
        }
    }

    /// Checks that `who` can use the invitation. The caller has verified the buyer's signature.
    fn check_invitation(
        &self,
        invitation: &Invitation,
        who: Address,
        now: Timestamp,
    ) -> Result<(), Rejection> {
        if invitation.market != self.spec.market {
            let message = "the invitation is for another market: ask the buyer for one of this one";
            return reject(ErrorCode::WrongMarket, message);
        }
        if invitation.task != self.id {
            let message = format!(
                "the invitation is for task {}, not for task {}: use the one that the buyer sent \
                 for this task",
                invitation.task.short(),
                self.id.short()
            );
            return reject(ErrorCode::InvalidInvitation, message);
        }
        if let Some(account) = invitation.account.filter(|account| *account != who) {
            let message =
                format!("the invitation is for {account}, not for {who}: enrol with that account");
            return reject(ErrorCode::InvalidInvitation, message);
        }
        if now > invitation.expires {
            return expired("the invitation", invitation.expires, now);
        }
        if self.invitations.contains_key(&invitation.nonce) {
            let message = "another account has used the invitation: ask the buyer for another one";
            return reject(ErrorCode::InvitationUsed, message);
        }
        Ok(())
    }

    /// The bond of `account` less debits that the ledger has not applied yet, if that is at least
    /// the minimum.
    pub(super) fn bond_at_risk(&self, account: Address, bond: Amount) -> Result<Amount, Rejection> {
        let smallest = self.spec.budget.bond_min;
        let left = bond.minus(self.pending_debits(account)).unwrap_or(Amount::ZERO);
        if left >= smallest {
            return Ok(left);
        }
        let message = format!(
            "the bond of {account} is {left} FLN and must be at least {smallest} FLN: bond more (a \
             bond that is being withdrawn does not count)"
        );
        reject(ErrorCode::BondTooSmall, message)
    }

    pub(super) fn blob_arrived(&mut self, digest: Digest, now: Timestamp) {
        self.missing_blobs.remove(&digest);
        if self.spec.blobs().any(|blob| blob == digest) {
            self.public.insert(digest);
        }
        self.begin_if_complete(now);
    }

    pub(super) fn holdout_arrived(&mut self, digest: Digest, now: Timestamp) {
        self.holdout = Some(digest);
        self.begin_if_complete(now);
    }

    fn begin_if_complete(&mut self, now: Timestamp) {
        let complete = self.missing_blobs.is_empty() && self.holdout.is_some();
        if complete && matches!(self.stage, TaskStage::AwaitingBlobs) {
            let target_until = now.saturating_add_ms(self.spec.rounds.enrol_ms);
            self.stage = TaskStage::Enrolling { target_until };
            self.open_if_ready(now);
        }
    }

    pub(super) fn enrol(&mut self, enrol: &EnrolRequest, bond: Amount, now: Timestamp) {
        let sender = enrol.sender;
        let known = self.enrolled.contains_key(&sender);
        let admits_invited = matches!(self.spec.admission, Admission::Invitation);
        if let Some(invitation) = enrol.invitation.as_ref().filter(|_| admits_invited && !known) {
            self.invitations.insert(invitation.nonce, sender);
        }
        let left = bond.minus(self.pending_debits(sender)).unwrap_or(Amount::ZERO);
        self.enrolled.insert(sender, left);
        // Only the first quote counts: a later one could be fitted to the seed of a cohort.
        self.quotes.entry(sender).or_insert(enrol.quote_ms);
        if !known {
            self.add_newcomer(sender);
        }
        if self.must_enrol_again(sender) {
            let next = self.current_round().0.saturating_add(u32::from(self.running().is_some()));
            // As many rounds as it may have held a place without an update.
            let rounds = SIT_OUT_ROUNDS.max(self.spec.rounds.staleness.rounds);
            let from = RoundNumber(next.saturating_add(rounds));
            self.sitting_out.insert(sender, Some(from));
        }
        self.open_if_ready(now);
    }

    /// Whether `sender` was selected, did not deliver, and has not enrolled again since.
    pub(super) fn must_enrol_again(&self, sender: Address) -> bool {
        self.sitting_out.get(&sender) == Some(&None)
    }
}

/// The latest time at which a round can open and still become final before the task expires. The
/// round's phases, the posting of its settlement and the challenge window must fit. The same sum is
/// the minimum time for which a bond stays locked.
pub(super) fn last_start(spec: &TaskSpec) -> Timestamp {
    Timestamp(spec.expires.0.saturating_sub(spec.unbond_ms_min()))
}
