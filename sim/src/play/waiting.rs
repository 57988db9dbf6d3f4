//! Waiting for a round: where too few are ready for one, time passes until enough of those who were away are back.

use super::{Game, SimError};
use crate::market::{Next, account};

/// Moments that a task waits for members, one after the other, before it is given up.
const WAITS_MAX: u32 = 1_000;

impl Game<'_> {
    /// Lets virtual time pass until a round opens; `false` where none will any more.
    ///
    /// # Errors
    /// [`SimError`].
    pub fn opens(&mut self) -> Result<bool, SimError> {
        for _ in 0..WAITS_MAX {
            match self.market.next_offer()? {
                Next::Offer => return Ok(true),
                Next::Over => return Ok(false),
                Next::Short => self.wait()?,
            }
        }
        Ok(false)
    }

    /// The moment at which members look whether they are there: rounds, and waits between them.
    pub(super) fn moment(&self) -> u64 {
        self.rounds.len() as u64 + 1 + self.waits
    }

    /// As long as a round takes at most, and those who are back enrol again.
    fn wait(&mut self) -> Result<(), SimError> {
        let terms = &self.scenario.task;
        self.market.wait(((terms.train_s + terms.reveal_s) * 1e3).ceil() as u64);
        self.waits += 1;
        let (moment, now) = (self.moment(), self.market.now().0);
        for group in 0..self.groups.len() {
            let members = self.population.members.iter().filter(|member| member.group == group);
            let terms = self.groups[group];
            let mut back = Vec::new();
            for member in members {
                let habits = &mut self.habits[member.number];
                let online = member.is_online(&terms.online, moment, now, self.seed);
                if habits.is_silent && online && habits.comes(terms.elsewhere, moment) {
                    habits.is_silent = false;
                    back.push(member.number);
                }
            }
            self.enrol_again(&back)?;
        }
        Ok(())
    }

    /// Every identity of these members enrols again.
    pub(super) fn enrol_again(&mut self, members: &[usize]) -> Result<(), SimError> {
        for member in members {
            for identity in 0..self.population.members[*member].strategy.identities() {
                self.market.enrol_again(account(*member, identity))?;
            }
        }
        Ok(())
    }
}
