//! The financial transactions of a participant, with the production functions: bonding, claiming
//! pay, and withdrawing the bond.

use florin_ledger::LedgerError;
use florin_participant::{
    BondStatus, ClaimError, claim_with_proof, required_bond, top_up_bond, withdraw_bond,
};
use florin_protocol::ErrorCode;

use super::{LEDGER_MS, Member, MemberActivity, POLL_MS};
use crate::context::SimContext;
use crate::ledger::DummySigner;
use crate::message::{CoordinatorReply, CoordinatorRequest};

impl Member {
    /// Bonds the amount that the participant's rows require, minus the existing bond.
    pub(super) fn bond(&mut self, world: &mut SimContext) {
        self.memory.activity = MemberActivity::Bonding;
        let spec = &world.setup.spec;
        let wanted = required_bond(spec, self.rows.rows() as u64, None);
        let (way, by) = (world.ledger_link(self.process()), DummySigner(self.account));
        let bonded = top_up_bond(&way, &by, spec.id(), |_| wanted);
        world.schedule_late_transactions();
        if self.maybe_crash(world) {
            return;
        }
        match bonded {
            Ok(_) => {
                let reported = self.memory.view.as_ref().map_or(0, |view| view.reported);
                self.request(world, MemberActivity::Enrolling(reported), CoordinatorRequest::Enrol);
            }
            Err(LedgerError::Unavailable(_)) => self.channel.set_timer(world, LEDGER_MS),
            Err(error) => {
                world.log(self.process(), format_args!("cannot bond: {error}"));
                self.check_again(world, POLL_MS);
            }
        }
    }

    /// Claims the pay that a proof covers; without final pay there is nothing to claim.
    pub(super) fn on_proof(&mut self, world: &mut SimContext, reply: CoordinatorReply) {
        let ends = self.memory.activity == MemberActivity::Finishing;
        if let MemberActivity::Claiming { finalised } = self.memory.activity {
            self.memory.drawn_at = finalised;
        }
        let drawn = match reply {
            CoordinatorReply::Proof(proof) => {
                let (way, by) = (world.ledger_link(self.process()), DummySigner(self.account));
                let drawn = claim_with_proof(&way, &by, world.setup.spec.id(), proof);
                world.schedule_late_transactions();
                drawn.map(drop)
            }
            // Nothing is final yet, so nothing is owed.
            CoordinatorReply::Refused(rejection) if rejection.code == ErrorCode::NotYetPublic => {
                Ok(())
            }
            _ => return self.check_again(world, POLL_MS),
        };
        if self.maybe_crash(world) {
            return;
        }
        match drawn {
            Ok(()) if ends => self.withdraw_bond(world),
            Ok(()) => self.check_again(world, 1),
            Err(error) => {
                world.log(self.process(), format_args!("cannot claim: {error}"));
                if matches!(error, ClaimError::InvalidProof { .. }) {
                    world.auditor.report_violation(
                        "proofs verify against the ledger's root",
                        error.to_string(),
                    );
                }
                // During the task the participant claims again later; after the task it retries.
                let pause = if ends { LEDGER_MS } else { POLL_MS };
                if ends {
                    self.channel.set_timer(world, pause);
                } else {
                    self.check_again(world, pause);
                }
            }
        }
    }

    /// Withdraws the bond from the finished task.
    pub(super) fn withdraw_bond(&mut self, world: &mut SimContext) {
        self.memory.activity = MemberActivity::WithdrawingBond;
        let (way, by) = (world.ledger_link(self.process()), DummySigner(self.account));
        let bond = withdraw_bond(&way, &by, world.setup.spec.id());
        world.schedule_late_transactions();
        if self.maybe_crash(world) {
            return;
        }
        match bond {
            Ok(BondStatus::None | BondStatus::Returned(_)) => {
                world.log(self.process(), format_args!("is done"));
                self.finished = true;
                self.memory.activity = MemberActivity::Done;
            }
            Ok(BondStatus::Locked(until)) => {
                let now = world.ledger().now();
                self.channel.set_timer(world, until.ms_since(now).clamp(1, 2_000));
            }
            Ok(BondStatus::NotRequested) | Err(_) => self.channel.set_timer(world, LEDGER_MS),
        }
    }
}
