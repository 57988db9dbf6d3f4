//! The order in which coalitions are built from one another.
//!
//! The models of a batch are sums `base + first member + second member + …` with ascending members.
//! Coalitions with the same first members share that part of the sum, so the batch is a tree (a
//! trie), and a depth-first walk needs one addition per edge and one stored sum per level. A sum is
//! the same in every batch: nothing depends on the other coalitions.

use super::masks::CoalitionMasks;

/// The next operation of a walk, on a stack of sums that starts with the base alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WalkStep {
    /// Push the top plus this member.
    Push(u32),
    /// Add this member to the top in place; the old top is not needed again.
    Add(u32),
    /// Pop this many sums.
    Pop(u32),
    /// The top is the coalition at this index of the plan's order.
    Evaluate(u32),
}

/// The walk over some coalitions.
pub(super) struct WalkPlan {
    pub(super) steps: Vec<WalkStep>,
    /// Largest depth of the stack, including the base.
    pub(super) levels: usize,
}

impl WalkPlan {
    /// Plans the coalitions `order` of `masks`, which must be in the order of [`CoalitionMasks::prefix_order`].
    pub(super) fn new(masks: &CoalitionMasks, order: &[u32]) -> Self {
        let shared: Vec<usize> = order
            .windows(2)
            .map(|pair| masks.shared_prefix_len(pair[0] as usize, pair[1] as usize))
            .chain([0])
            .collect();
        // Number of members of each sum on the stack.
        let mut stack = vec![0];
        let (mut steps, mut levels) = (Vec::new(), 1);
        let mut prefixes = Vec::new();
        for (at, &mask) in order.iter().enumerate() {
            let common = if at == 0 { 0 } else { shared[at - 1] };
            let above = stack.iter().rev().take_while(|&&depth| depth > common).count();
            if above > 0 {
                steps.push(WalkStep::Pop(above as u32));
                stack.truncate(stack.len() - above);
            }
            let mut depth = stack.last().copied().unwrap_or(0);
            let members: Vec<usize> = masks.members(mask as usize).collect();
            reused_prefixes(&shared[at..], depth, members.len(), &mut prefixes);
            for &until in &prefixes {
                for (step, &member) in members[depth..until].iter().enumerate() {
                    let member = member as u32;
                    steps.push(if step == 0 {
                        WalkStep::Push(member)
                    } else {
                        WalkStep::Add(member)
                    });
                }
                stack.push(until);
                depth = until;
            }
            levels = levels.max(stack.len());
            steps.push(WalkStep::Evaluate(at as u32));
        }
        Self { steps, levels }
    }
}

/// The prefix lengths above `depth` of this coalition of `members` members that later coalitions
/// continue from, and `members` itself, ascending.
fn reused_prefixes(shared: &[usize], depth: usize, members: usize, prefixes: &mut Vec<usize>) {
    prefixes.clear();
    let mut least = members;
    if members > depth {
        prefixes.push(members);
    }
    for &common in shared {
        if common <= depth {
            break;
        }
        if common < least {
            prefixes.push(common);
            least = common;
        }
    }
    prefixes.reverse();
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a plan with lists of members instead of sums.
    fn walked(masks: &CoalitionMasks, order: &[u32]) -> (Vec<Vec<u32>>, usize) {
        let plan = WalkPlan::new(masks, order);
        let (mut stack, mut additions) = (vec![Vec::new()], 0);
        let mut seen = vec![Vec::new(); order.len()];
        for step in plan.steps {
            match step {
                WalkStep::Push(member) => {
                    stack.push([stack.last().unwrap().as_slice(), &[member]].concat());
                    additions += 1;
                }
                WalkStep::Add(member) => {
                    stack.last_mut().unwrap().push(member);
                    additions += 1;
                }
                WalkStep::Pop(count) => stack.truncate(stack.len() - count as usize),
                WalkStep::Evaluate(at) => seen[at as usize] = stack.last().unwrap().clone(),
            }
            assert!(stack.len() <= plan.levels && !stack.is_empty());
        }
        (seen, additions)
    }

    fn check(masks: &CoalitionMasks) -> usize {
        let order = masks.prefix_order();
        let (seen, additions) = walked(masks, &order);
        for (&mask, seen) in order.iter().zip(seen) {
            let members: Vec<u32> = masks.members(mask as usize).map(|m| m as u32).collect();
            assert_eq!(seen, members);
        }
        additions
    }

    #[test]
    fn all_coalitions_cost_one_addition_each() {
        for players in 0..8 {
            assert_eq!(
                check(&CoalitionMasks::all(players).unwrap()),
                (1 << players) - 1,
                "{players}"
            );
        }
    }

    #[test]
    fn every_batch_is_summed_from_its_members_in_ascending_order() {
        let mut masks = CoalitionMasks::new(6);
        // {0,1,2,3,4}, {0,1,2,3,5}, {0,1,5}: the sum of two members is retained for the third.
        for bits in [0b01_1111, 0b10_1111, 0b10_0011] {
            masks.push(&[bits]).unwrap();
        }
        assert_eq!(check(&masks), 5 + 1 + 1);
        let seed = 11_u64;
        let mut state = seed;
        for round in 0..300 {
            let mut masks = CoalitionMasks::new(9);
            for _ in 0..round % 40 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99);
                // Includes occasional duplicates and the empty coalition.
                masks.push(&[state >> 55 & if round % 3 == 0 { 0b111 } else { 0x1ff }]).unwrap();
            }
            let additions = check(&masks);
            let alone: usize = (0..masks.len()).map(|at| masks.members(at).count()).sum();
            assert!(additions <= alone, "seed {seed}, round {round}");
        }
    }
}
