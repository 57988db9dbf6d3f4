//! Tests of the cut: a comparison with all cuts, ties, memory, limits and speed.

use super::*;

const FREE: TransferCost = TransferCost { alpha: 0.0, beta: 0.0 };

/// The generator xorshift64 (Marsaglia 2003).
struct Xorshift(u64);

impl Xorshift {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// A problem that owns its numbers.
#[derive(Debug, Clone)]
struct Owned {
    nodes: Vec<NodeCost>,
    boundary_bytes: Vec<u64>,
    can_cut: Vec<bool>,
    slowness: Vec<f64>,
    links: Vec<TransferCost>,
    memory_bytes: Vec<u64>,
    is_limited: bool,
    /// Where the first part can end, and the other seconds of its process.
    first: Option<(Vec<bool>, f64)>,
}

impl Owned {
    /// Nodes of these seconds, in parts of equal devices with free links.
    fn plain(seconds: &[f64], parts: usize) -> Self {
        let node = |&seconds: &f64| NodeCost {
            forward_seconds: seconds,
            backward_seconds: 0.0,
            parameter_bytes: 1,
            saved_bytes: 1,
        };
        Self {
            nodes: seconds.iter().map(node).collect(),
            boundary_bytes: vec![1; seconds.len() + 1],
            can_cut: vec![true; seconds.len() + 1],
            slowness: vec![1.0; parts],
            links: vec![FREE; parts - 1],
            memory_bytes: vec![u64::MAX; parts],
            is_limited: false,
            first: None,
        }
    }

    /// Small whole numbers, so that there are many ties and all sums are exact.
    fn random(random: &mut Xorshift) -> Self {
        let nodes = 1 + random.below(9) as usize;
        let parts = 1 + random.below(nodes as u64 + 1) as usize;
        let mut owned = Self::plain(&vec![0.0; nodes], parts);
        for node in &mut owned.nodes {
            node.forward_seconds = random.below(5) as f64;
            node.backward_seconds = random.below(5) as f64;
            node.parameter_bytes = random.below(4);
            node.saved_bytes = random.below(4);
        }
        owned.boundary_bytes.fill_with(|| random.below(4));
        owned.can_cut.fill_with(|| random.below(4) > 0);
        owned.slowness.fill_with(|| [0.5, 1.0, 2.0, 3.0][random.below(4) as usize]);
        owned.links.fill_with(|| TransferCost {
            alpha: random.below(3) as f64,
            beta: random.below(3) as f64,
        });
        owned.memory_bytes.fill_with(|| 4 + random.below(40));
        owned.is_limited = random.below(2) == 0;
        owned
    }

    fn problem(&self) -> CutProblem<'_> {
        let memory = MemoryLimits { bytes: &self.memory_bytes, parameter_factor: 3 };
        CutProblem {
            nodes: &self.nodes,
            boundary_bytes: &self.boundary_bytes,
            can_cut: &self.can_cut,
            slowness: &self.slowness,
            links: &self.links,
            memory: self.is_limited.then_some(memory),
        }
    }

    fn cut(&self) -> Result<Cut, CutError> {
        match &self.first {
            None => cut(&self.problem()),
            Some((can_end, other_seconds)) => {
                let first = FirstPart { can_end, other_seconds: *other_seconds };
                cut_with_first_part(&self.problem(), &first)
            }
        }
    }

    /// The cut at these positions, or `None` if it is not allowed.
    fn at(&self, cuts: &[usize]) -> Option<Cut> {
        let bounds = [&[0], cuts, &[self.nodes.len()]].concat();
        let mut found = Cut { ranges: Vec::new(), stage_seconds: 0.0, transferred_bytes: 0 };
        for (part, pair) in bounds.windows(2).enumerate() {
            let own = &self.nodes[pair[0]..pair[1]];
            let sum = own.iter().map(|node| node.forward_seconds + node.backward_seconds);
            let other = self.first.as_ref().filter(|_| part == 0).map_or(0.0, |first| first.1);
            let seconds = (sum.sum::<f64>() + other) * self.slowness[part];
            found.stage_seconds = found.stage_seconds.max(seconds);
            let parameters: u64 = own.iter().map(|node| node.parameter_bytes).sum();
            let saved: u64 = own.iter().map(|node| node.saved_bytes).sum();
            let needed = 3 * parameters + saved * (self.slowness.len() - part) as u64;
            if self.is_limited && needed > self.memory_bytes[part] {
                return None;
            }
            found.ranges.push(pair[0]..pair[1]);
        }
        if let (Some((can_end, _)), Some(&end)) = (&self.first, cuts.first())
            && !can_end[end]
        {
            return None;
        }
        for (&at, link) in cuts.iter().zip(&self.links) {
            if !self.can_cut[at] {
                return None;
            }
            let (bytes, seconds) = (self.boundary_bytes[at], link.seconds(self.boundary_bytes[at]));
            found.stage_seconds = found.stage_seconds.max(2.0 * seconds);
            found.transferred_bytes += bytes;
        }
        Some(found)
    }

    /// The best of all cuts, which are looked at from earlier to later ones.
    fn brute_force(&self) -> Option<Cut> {
        fn cuts(from: usize, nodes: usize, left: usize, look: &mut dyn FnMut(&[usize])) {
            fn next(
                from: usize,
                nodes: usize,
                left: usize,
                own: &mut Vec<usize>,
                look: &mut dyn FnMut(&[usize]),
            ) {
                if left == 0 {
                    return look(own);
                }
                for at in from..nodes {
                    own.push(at);
                    next(at + 1, nodes, left - 1, own, look);
                    own.pop();
                }
            }
            next(from, nodes, left, &mut Vec::new(), look);
        }
        let mut best: Option<Cut> = None;
        cuts(1, self.nodes.len(), self.slowness.len() - 1, &mut |cuts| {
            let Some(found) = self.at(cuts) else { return };
            let is_better = best.as_ref().is_none_or(|best| {
                (found.stage_seconds, found.transferred_bytes)
                    < (best.stage_seconds, best.transferred_bytes)
            });
            if is_better {
                best = Some(found);
            }
        });
        best
    }
}

#[test]
fn cuts_equal_those_of_brute_force() {
    let seed = 0x5eed_0001;
    println!("seed {seed:#x}");
    let mut random = Xorshift(seed);
    let (mut solved, mut too_few, mut too_large) = (0, 0, 0);
    for _ in 0..4_000 {
        let owned = Owned::random(&mut random);
        match (owned.cut(), owned.brute_force()) {
            (Ok(found), Some(best)) => {
                assert_eq!(found, best, "{owned:?}");
                solved += 1;
            }
            (Err(CutError::TooFewPositions { .. }), None) => too_few += 1,
            (Err(CutError::TooLittleMemory), None) => too_large += 1,
            (found, best) => panic!("{found:?} instead of {best:?}: {owned:?}"),
        }
    }
    println!(
        "{solved} solved, {too_few} with too few positions, {too_large} with too little memory"
    );
    assert!(solved >= 1_000 && too_few >= 200 && too_large >= 200);
}

#[test]
fn cuts_with_a_first_part_equal_those_of_brute_force() {
    let seed = 0x5eed_0002;
    println!("seed {seed:#x}");
    let mut random = Xorshift(seed);
    let (mut solved, mut refused) = (0, 0);
    for _ in 0..2_000 {
        let mut owned = Owned::random(&mut random);
        if owned.slowness.len() < 2 {
            continue;
        }
        let can_end = owned.can_cut.iter().map(|_| random.below(3) > 0).collect();
        owned.first = Some((can_end, random.below(8) as f64));
        match (owned.cut(), owned.brute_force()) {
            (Ok(found), Some(best)) => {
                assert_eq!(found, best, "{owned:?}");
                solved += 1;
            }
            (Err(_), None) => refused += 1,
            (found, best) => panic!("{found:?} instead of {best:?}: {owned:?}"),
        }
    }
    assert!(solved >= 300 && refused >= 300, "{solved} {refused}");
}

#[test]
fn a_slow_device_gets_fewer_nodes() {
    let mut owned = Owned::plain(&[1.0; 6], 2);
    assert_eq!(owned.cut().unwrap().ranges, [0..3, 3..6]);
    owned.slowness = vec![1.0, 2.0];
    let found = owned.cut().unwrap();
    assert_eq!((found.ranges, found.stage_seconds), (vec![0..4, 4..6], 4.0));
}

#[test]
fn a_slow_link_moves_the_cut() {
    let mut owned = Owned::plain(&[1.0; 6], 2);
    owned.boundary_bytes[3] = 10;
    owned.links = vec![TransferCost { alpha: 0.0, beta: 0.25 }];
    // The activations and the gradients across cut 3 take 5 seconds.
    let found = owned.cut().unwrap();
    assert_eq!((found.ranges, found.stage_seconds), (vec![0..2, 2..6], 4.0));
}

#[test]
fn ties_go_to_fewer_bytes_and_then_to_earlier_cuts() {
    // The slowest part has the node of 4 seconds and no other with seconds.
    let mut owned = Owned::plain(&[0.0, 0.0, 4.0, 0.0, 0.0], 3);
    let found = owned.cut().unwrap();
    assert_eq!((found.ranges, found.transferred_bytes), (vec![0..1, 1..2, 2..5], 2));
    owned.boundary_bytes = vec![0, 5, 3, 5, 3, 0];
    let found = owned.cut().unwrap();
    assert_eq!((found.ranges, found.transferred_bytes), (vec![0..2, 2..4, 4..5], 6));
    owned.nodes[1].forward_seconds = 1.0;
    owned.boundary_bytes = vec![0, 9, 9, 1, 1, 0];
    let found = owned.cut().unwrap();
    assert_eq!(found.ranges, [0..2, 2..3, 3..5], "fewer seconds win over fewer bytes");
}

#[test]
fn earlier_parts_need_memory_for_more_micro_batches() {
    let mut owned = Owned::plain(&[1.0; 6], 2);
    owned.is_limited = true;
    // Each node needs 3 bytes for its parameter, and 2 bytes in part 0 or 1 byte in part 1.
    owned.memory_bytes = vec![10, 16];
    assert_eq!(owned.cut().unwrap().ranges, [0..2, 2..6]);
    owned.memory_bytes = vec![9, 16];
    assert_eq!(owned.cut(), Err(CutError::TooLittleMemory));
}

#[test]
fn positions_are_only_those_allowed() {
    let mut owned = Owned::plain(&[1.0; 6], 3);
    owned.can_cut = vec![true, true, false, false, false, true, true];
    assert_eq!(owned.cut().unwrap().ranges, [0..1, 1..5, 5..6]);
    owned.can_cut[5] = false;
    let too_few = CutError::TooFewPositions { positions: 1, parts: 3 };
    assert_eq!(owned.cut(), Err(too_few));
}

#[test]
fn wrong_problems_are_refused() {
    type PlantedChange = fn(&mut Owned);
    let changes: [PlantedChange; 15] = [
        |owned| owned.nodes.clear(),
        |owned| owned.nodes = vec![owned.nodes[0]; NODES_MAX + 1],
        |owned| owned.boundary_bytes.truncate(2),
        |owned| owned.can_cut.truncate(2),
        |owned| owned.slowness.clear(),
        |owned| owned.links.clear(),
        |owned| (owned.is_limited, owned.memory_bytes) = (true, vec![1]),
        |owned| owned.nodes[0].parameter_bytes = BYTES_MAX + 1,
        |owned| owned.boundary_bytes[1] = BYTES_MAX + 1,
        |owned| owned.nodes[1].forward_seconds = f64::NAN,
        |owned| owned.nodes[1].backward_seconds = -1.0,
        |owned| owned.nodes.iter_mut().for_each(|node| node.forward_seconds = f64::MAX),
        |owned| owned.slowness[1] = 0.0,
        |owned| owned.slowness[1] = f64::INFINITY,
        |owned| owned.links[0].beta = f64::INFINITY,
    ];
    for (at, change) in changes.into_iter().enumerate() {
        let mut owned = Owned::plain(&[1.0; 6], 2);
        assert!(owned.cut().is_ok());
        change(&mut owned);
        let refused = owned.cut();
        assert!(matches!(refused, Err(CutError::Invalid { .. })), "{at}: {refused:?}");
    }
    let parts = PARTS_MAX as usize + 1;
    let refused = Owned::plain(&vec![1.0; parts], parts).cut();
    assert!(matches!(refused, Err(CutError::Invalid { .. })));
    let refused = Owned::plain(&vec![1.0; CELLS_MAX / 1_024], 1_024).cut();
    assert!(matches!(refused, Err(CutError::Invalid { .. })), "the table would be too large");
}

#[test]
fn a_large_graph_is_cut_within_two_seconds() {
    let seed = 0x5eed_0002;
    println!("seed {seed:#x}");
    let mut random = Xorshift(seed);
    let seconds: Vec<f64> = (0..5_000).map(|_| random.below(1_000_000) as f64 * 1e-9).collect();
    let mut owned = Owned::plain(&seconds, 16);
    owned.boundary_bytes.fill_with(|| random.below(1 << 20));
    owned.links.fill(TransferCost { alpha: 1e-6, beta: 1e-10 });
    let start = std::time::Instant::now();
    let found = owned.cut().unwrap();
    let taken = start.elapsed();
    println!("5,000 nodes in 16 parts: {taken:?}");
    let even = seconds.iter().sum::<f64>() / 16.0;
    assert!(found.stage_seconds >= even && found.stage_seconds < 1.02 * even);
    assert!(taken.as_secs_f64() < 2.0, "{taken:?}");
}
