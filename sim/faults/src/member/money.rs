//! The financial transactions of a participant, with the production functions: bonding, claiming
//! pay, and withdrawing the bond.

use florin_ledger::LedgerError;
use florin_participant::{Bond, ClaimError, bond_for, draw_by_proof, return_bond, top_up};
use florin_protocol::ErrorCode;

use super::{Doing, LEDGER_MS, Member, POLL_MS};
use crate::ledger::Unsigned;
use crate::message::{Ask, Reply};
use crate::world::World;

impl Member {
    /// Bonds the amount that the participant's rows require, minus the existing bond.
    pub(super) fn bond(&mut self, world: &mut World) {
        self.memory.doing = Doing::Bonds;
        let spec = &world.cast.spec;
        let wanted = bond_for(spec, self.rows.rows() as u64, None);
        let (way, by) = (world.way(self.me()), Unsigned(self.account));
        let bonded = top_up(&way, &by, spec.id(), wanted);
        world.send_late();
        if self.dies(world) {
            return;
        }
        match bonded {
            Ok(_) => {
                let reported = self.memory.view.as_ref().map_or(0, |view| view.reported);
                self.says(world, Doing::Enrols(reported), Ask::Enrol);
            }
            Err(LedgerError::Unavailable(_)) => self.line.wake(world, LEDGER_MS),
            Err(error) => {
                world.tell(self.me(), format_args!("cannot bond: {error}"));
                self.look_again(world, POLL_MS);
            }
        }
    }

    /// Claims the pay that a proof covers; without final pay there is nothing to claim.
    pub(super) fn proven(&mut self, world: &mut World, reply: Reply) {
        let ends = self.memory.doing == Doing::Finishes;
        if let Doing::Draws { finalised } = self.memory.doing {
            self.memory.drawn_at = finalised;
        }
        let drawn = match reply {
            Reply::Proof(proof) => {
                let (way, by) = (world.way(self.me()), Unsigned(self.account));
                let drawn = draw_by_proof(&way, &by, world.cast.spec.id(), proof);
                world.send_late();
                drawn.map(drop)
            }
            // Nothing is final yet, so nothing is owed.
            Reply::Refused(rejection) if rejection.code == ErrorCode::NotYetPublic => Ok(()),
            _ => return self.look_again(world, POLL_MS),
        };
        if self.dies(world) {
            return;
        }
        match drawn {
            Ok(()) if ends => self.have_bond_back(world),
            Ok(()) => self.look_again(world, 1),
            Err(error) => {
                world.tell(self.me(), format_args!("cannot claim: {error}"));
                if matches!(error, ClaimError::InvalidProof { .. }) {
                    world
                        .auditor
                        .found("proofs verify against the ledger's root", error.to_string());
                }
                // During the task the participant claims again later; after the task it retries.
                let pause = if ends { LEDGER_MS } else { POLL_MS };
                if ends {
                    self.line.wake(world, pause);
                } else {
                    self.look_again(world, pause);
                }
            }
        }
    }

    /// Withdraws the bond from the finished task.
    pub(super) fn have_bond_back(&mut self, world: &mut World) {
        self.memory.doing = Doing::HasBondBack;
        let (way, by) = (world.way(self.me()), Unsigned(self.account));
        let bond = return_bond(&way, &by, world.cast.spec.id());
        world.send_late();
        if self.dies(world) {
            return;
        }
        match bond {
            Ok(Bond::None | Bond::Returned(_)) => {
                world.tell(self.me(), format_args!("is done"));
                self.finished = true;
                self.memory.doing = Doing::IsDone;
            }
            Ok(Bond::Held(until)) => {
                let now = world.bank().now();
                self.line.wake(world, until.ms_since(now).clamp(1, 2_000));
            }
            Ok(Bond::Untouched) | Err(_) => self.line.wake(world, LEDGER_MS),
        }
    }
}
