//! Executes the actions of all ranks in memory, for tests.
//!
//! A message refers to the sender's vector, and its receiver reads it: the latest time at which
//! a transport may read it. The ranks take turns in a random order.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Range;

use super::actions::{PieceTransfer, ReductionAction};
use super::plan::ReductionPlan;
use crate::virtual_workers::{Assignment, Merge, merges, merges_after};

/// A small generator (xorshift64*, Vigna 2016).
pub(super) struct ReductionRandom(u64);

impl ReductionRandom {
    pub(super) fn new(seed: u64) -> Self {
        println!("seed {seed}");
        Self(seed)
    }

    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 32) % end
    }

    /// A number of a random sign and magnitude.
    fn float(&mut self) -> f32 {
        let mantissa = self.below(1 << 24) as f32 - (1 << 23) as f32;
        mantissa * 2.0_f32.powi(self.below(40) as i32 - 20)
    }

    /// ReductionRandom consecutive ranges, for the ranks in a random order after rank 0.
    pub(super) fn assignment(&mut self, workers: u32, ranks: usize) -> Assignment {
        let mut cuts: Vec<u32> =
            (1..ranks).map(|_| 1 + self.below(u64::from(workers)) as u32).collect();
        cuts.extend([0, workers]);
        cuts.sort_unstable();
        let mut ranges: Vec<Range<u32>> = cuts.windows(2).map(|pair| pair[0]..pair[1]).collect();
        for at in (2..ranks).rev() {
            ranges.swap(at, 1 + self.below(at as u64) as usize);
        }
        Assignment::from_ranges(ranges, workers).unwrap()
    }
}

fn add(left: &mut [f32], right: &[f32]) {
    left.iter_mut().zip(right).for_each(|(left, right)| *left += right);
}

/// The sum of all parts along the tree.
fn direct(gradients: &[Vec<f32>]) -> Vec<f32> {
    let mut sums = gradients.to_vec();
    for Merge { into, from } in merges(gradients.len()) {
        let right = std::mem::take(&mut sums[from]);
        add(&mut sums[into], &right);
    }
    sums.swap_remove(0)
}

type Slots = BTreeMap<usize, Vec<f32>>;

/// The sums of a rank before the reduction.
fn own_sums(gradients: &[Vec<f32>], own: &Range<usize>) -> Slots {
    let mut sums = Slots::new();
    for part in own.clone() {
        sums.insert(part, gradients[part].clone());
        for Merge { into, from } in merges_after(part, own, gradients.len()) {
            let right = sums.remove(&from).unwrap();
            add(sums.get_mut(&into).unwrap(), &right);
        }
    }
    sums
}

fn at(elements: &Range<u64>) -> Range<usize> {
    elements.start as usize..elements.end as usize
}

struct TestReduction {
    /// The vectors of each rank.
    slots: Vec<Slots>,
    elements: usize,
    /// Messages by sender and receiver, in order.
    mailboxes: HashMap<(usize, usize), VecDeque<PieceTransfer>>,
}

impl TestReduction {
    /// Makes an action of a rank, unless its message is missing.
    fn act(&mut self, rank: usize, action: &ReductionAction) -> bool {
        match action {
            ReductionAction::Send(piece) => {
                assert!(self.slots[rank].contains_key(&piece.slot), "{piece:?}");
                let mailbox = self.mailboxes.entry((rank, piece.peer as usize)).or_default();
                mailbox.push_back(piece.clone());
            }
            ReductionAction::Merge { slots: Merge { into, from }, elements } => {
                let right = self.slots[rank][from][at(elements)].to_vec();
                add(&mut self.slots[rank].get_mut(into).unwrap()[at(elements)], &right);
            }
            ReductionAction::ReceiveAdd(piece) | ReductionAction::Receive(piece) => {
                let sender = piece.peer as usize;
                let mailbox = self.mailboxes.entry((sender, rank)).or_default();
                let Some(sent) = mailbox.pop_front() else { return false };
                let expected =
                    PieceTransfer { peer: rank as u32, slot: sent.slot, ..piece.clone() };
                assert_eq!(sent, expected);
                let values = self.slots[sender][&sent.slot][at(&sent.elements)].to_vec();
                let missing = || vec![f32::NAN; self.elements];
                let slot = self.slots[rank].entry(piece.slot).or_insert_with(missing);
                match action {
                    ReductionAction::Receive(_) => {
                        slot[at(&piece.elements)].copy_from_slice(&values)
                    }
                    _ => add(&mut slot[at(&piece.elements)], &values),
                }
            }
        }
        true
    }
}

/// Executes a plan on the gradients of the parts, and returns the total at rank 0.
fn execute(
    plan: ReductionPlan,
    assignment: &Assignment,
    gradients: &[Vec<f32>],
    random: &mut ReductionRandom,
) -> Vec<f32> {
    let (parts, elements) = (gradients.len(), gradients[0].len());
    let programs = plan.actions(assignment, parts, elements as u64);
    let ranks = programs.len();
    let slots = (0..ranks).map(|rank| own_sums(gradients, &assignment.own(rank as u32, parts)));
    let slots = slots.collect();
    let mut execution = TestReduction { slots, elements, mailboxes: HashMap::new() };
    let mut next = vec![0; ranks];
    while (0..ranks).any(|rank| next[rank] < programs[rank].len()) {
        let before = next.clone();
        let first = random.below(ranks as u64) as usize;
        for rank in (0..ranks).map(|rank| (first + rank) % ranks) {
            let most = 1 + random.below(8) as usize;
            for action in programs[rank].iter().skip(next[rank]).take(most) {
                if !execution.act(rank, action) {
                    break;
                }
                next[rank] += 1;
            }
        }
        assert_ne!(before, next, "all ranks wait");
    }
    assert!(execution.mailboxes.values().all(VecDeque::is_empty), "a message was not received");
    execution.slots.swap_remove(0).remove(&0).unwrap()
}

mod tests {
    use super::*;
    use crate::reduction::actions::shared_levels;
    use crate::reduction::plan::{LevelRules, ReductionRule};

    fn bits(values: &[f32]) -> Vec<u32> {
        values.iter().map(|value| value.to_bits()).collect()
    }

    fn gradients(random: &mut ReductionRandom, parts: usize, elements: usize) -> Vec<Vec<f32>> {
        (0..parts).map(|_| (0..elements).map(|_| random.float()).collect()).collect()
    }

    #[test]
    fn all_plans_give_the_bits_of_the_direct_sum() {
        let mut random = ReductionRandom::new(0x5EED_0001);
        let mut executed = 0;
        for round in 0..60 {
            let workers = 1 + random.below(40) as u32;
            let ranks = 1 + random.below(12) as usize;
            let most = if round % 2 == 0 { 1_000 } else { 80 };
            let elements = 1 + random.below(most) as usize;
            let assignment = random.assignment(workers, ranks);
            // A short batch has fewer parts than there are workers.
            let parts = (workers - random.below(u64::from(workers)) as u32 / 4) as usize;
            let gradients = gradients(&mut random, parts, elements);
            let expected = bits(&direct(&gradients));
            let mut plans = ReductionPlan::family(&shared_levels(&assignment, parts));
            let rule = |random: &mut ReductionRandom| {
                [ReductionRule::Root, ReductionRule::Tree, ReductionRule::Halving]
                    [random.below(3) as usize]
            };
            for chunks in [3, 7, 61] {
                let (inner, outer) = (rule(&mut random), rule(&mut random));
                let inner_levels = random.below(7) as u32;
                plans.push(
                    ReductionPlan::new(chunks, LevelRules { inner, inner_levels, outer }).unwrap(),
                );
            }
            for plan in plans {
                let total = execute(plan, &assignment, &gradients, &mut random);
                let same = bits(&total) == expected;
                assert!(same, "{plan}, {assignment:?}, {elements} elements");
                executed += 1;
            }
        }
        println!("{executed} executions");
    }

    #[test]
    fn another_association_gives_other_bits() {
        let mut random = ReductionRandom::new(0x5EED_0002);
        for parts in 4..40 {
            let gradients = gradients(&mut random, parts, 100);
            let mut chain = gradients[0].clone();
            gradients[1..].iter().for_each(|gradient| add(&mut chain, gradient));
            assert_ne!(bits(&chain), bits(&direct(&gradients)), "{parts} parts");
        }
    }

    #[test]
    fn halving_receives_fewer_elements_than_the_tree() {
        let halving = ReductionPlan::new(1, LevelRules::uniform(ReductionRule::Halving)).unwrap();
        let even = Assignment::even(8, 8);
        let received = |plan: ReductionPlan, rank: usize| -> u64 {
            let actions = &plan.actions(&even, 8, 800)[rank];
            let received = actions.iter().filter(|action| {
                matches!(action, ReductionAction::ReceiveAdd(_) | ReductionAction::Receive(_))
            });
            received.map(|action| action.bytes() / 4).sum()
        };
        assert_eq!(received(halving, 0), 2 * 700, "halves, and their return");
        assert_eq!(received(halving, 1), 700 + 300, "it returns the elements of ranks 3, 5 and 7");
        assert_eq!(received(halving, 7), 700);
        assert_eq!(received(ReductionPlan::TREE, 0), 3 * 800);
        assert_eq!(received(ReductionPlan::FLAT, 0), 7 * 800);
    }

    #[test]
    fn actions_of_a_small_tree_can_be_read() {
        // Rank 0 has parts 0 to 2, rank 1 has part 3.
        let assignment = Assignment::from_ranges(vec![0..3, 3..4], 4).unwrap();
        let actions = ReductionPlan::TREE.actions(&assignment, 4, 10);
        let piece = |peer, slot| PieceTransfer { peer, slot, block: 3..4, elements: 0..10, tag: 0 };
        let slots = Merge { into: 0, from: 2 };
        assert_eq!(
            actions,
            [
                vec![
                    ReductionAction::ReceiveAdd(piece(1, 2)),
                    ReductionAction::Merge { slots, elements: 0..10 }
                ],
                vec![ReductionAction::Send(piece(0, 3))],
            ]
        );
    }
}
