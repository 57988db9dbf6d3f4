//! Waiting for a round: with too few available members, virtual time passes until enough of them
//! are back online.

use super::Simulation;
use crate::error::SimError;
use crate::market::{NextRound, account};

/// Maximum number of consecutive waits before the simulation ends the task.
const WAITS_MAX: u32 = 1_000;

impl Simulation<'_> {
    /// Advances virtual time until a round opens; `false` if no further round will open.
    ///
    /// # Errors
    /// [`SimError`].
    pub fn wait_for_round(&mut self) -> Result<bool, SimError> {
        for _ in 0..WAITS_MAX {
            match self.market.next_offer()? {
                NextRound::Open => return Ok(true),
                NextRound::Ended => return Ok(false),
                NextRound::TooFewParticipants => self.advance_one_round()?,
            }
        }
        Ok(false)
    }

    /// The index of the current availability check: rounds, and waits between them.
    pub(super) fn availability_index(&self) -> u64 {
        self.rounds.len() as u64 + 1 + self.waits
    }

    /// Waits for the maximum duration of a round; then the members that are back online enrol
    /// again.
    fn advance_one_round(&mut self) -> Result<(), SimError> {
        let terms = &self.scenario.task;
        self.market.advance(((terms.train_s + terms.reveal_s) * 1e3).ceil() as u64);
        self.waits += 1;
        let (moment, now) = (self.availability_index(), self.market.now().0);
        for group in 0..self.groups.len() {
            let members = self.population.members.iter().filter(|member| member.group == group);
            let terms = self.groups[group];
            let mut back = Vec::new();
            for member in members {
                let habits = &mut self.habits[member.number];
                let online = member.is_online(&terms.online, moment, now, self.seed);
                if habits.must_re_enrol
                    && online
                    && habits.participates(terms.outside_option, moment)
                {
                    habits.must_re_enrol = false;
                    back.push(member.number);
                }
            }
            self.re_enrol(&back)?;
        }
        Ok(())
    }

    /// Enrols every identity of these members again.
    pub(super) fn re_enrol(&mut self, members: &[usize]) -> Result<(), SimError> {
        for member in members {
            for identity in 0..self.population.members[*member].strategy.identities() {
                self.market.re_enrol(account(*member, identity))?;
            }
        }
        Ok(())
    }
}
