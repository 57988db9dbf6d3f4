//! Probes that are computed by definition, and forgeries of them.

use florin_protocol::holdout::HoldoutTree;

use super::*;

const SHAPE: ProbeShape = ProbeShape { devices: 2, filled: 8, reads: 24 };
const SEED: Digest = Digest([7; 32]);
const SECRET: Digest = Digest([8; 32]);

/// `before · factor + added` by definition.
fn multiply(before: &[u8], factor: &[u8], added: &[u8]) -> Vec<u8> {
    let element = |at: usize| {
        let (row, column) = (at / PROBE_SIDE, at % PROBE_SIDE);
        let products = (0..PROBE_SIDE).map(|k| {
            u32::from(before[row * PROBE_SIDE + k]) * u32::from(factor[k * PROBE_SIDE + column])
        });
        ((products.sum::<u32>() + u32::from(added[at])) % u32::from(PROBE_FIELD)) as u8
    };
    (0..PROBE_MATRIX_BYTES).map(element).collect()
}

/// The states of all devices, in the order of the tree.
struct Trace {
    states: Vec<Vec<u8>>,
    leaves: Vec<Digest>,
    tree: HoldoutTree,
}

impl Trace {
    fn compute() -> Self {
        let total = SHAPE.states() as usize;
        let (mut states, mut leaves) = (vec![Vec::new(); total], vec![Digest::default(); total]);
        for position in 0..SHAPE.links() as u32 {
            for device in 0..SHAPE.devices {
                let link = ProbeLink { device, position };
                let at = SHAPE.leaf_index(link) as usize;
                let (first, leaf) = match position {
                    0 => (first_state(SEED, device), None),
                    _ => (states[at - 1].clone(), Some(leaves[at - 1])),
                };
                let step = step(SEED, &SHAPE, link, leaf);
                let factor = match step.factor {
                    Factor::Pool(number) => pool_matrix(SEED, number),
                    Factor::Filled(link) => states[SHAPE.leaf_index(link) as usize].clone(),
                };
                states[at] = multiply(&first, &factor, &pool_matrix(SEED, step.added));
                leaves[at] = state_leaf(link, &states[at]);
            }
        }
        Self::of(states)
    }

    fn of(states: Vec<Vec<u8>>) -> Self {
        let links = SHAPE.links() as usize;
        let link =
            |at: usize| ProbeLink { device: (at / links) as u32, position: (at % links) as u32 };
        let leaf = |(at, state): (usize, &Vec<u8>)| state_leaf(link(at), state);
        let leaves: Vec<Digest> = states.iter().enumerate().map(leaf).collect();
        let tree = HoldoutTree::new(leaves.clone());
        Self { states, leaves, tree }
    }

    fn drawn(&self) -> DrawnProbe {
        DrawnProbe { shape: SHAPE, seed: SEED, root: self.tree.root(), secret: SECRET }
    }

    fn shown_state(&self, link: ProbeLink) -> ShownState {
        let at = SHAPE.leaf_index(link);
        ShownState { state: self.states[at as usize].clone(), proof: self.tree.proof(at).unwrap() }
    }

    fn shown_factor(&self, link: ProbeLink) -> ShownFactor {
        let before = link.position.checked_sub(1).map(|position| ProbeLink { position, ..link });
        let before = before.map(|link| self.shown_state(link));
        ShownFactor { state: self.shown_state(link), before }
    }

    fn shown(&self, link: ProbeLink) -> ShownLink {
        let before = link.position.checked_sub(1).map(|position| ProbeLink { position, ..link });
        let leaf = before.map(|link| self.leaves[SHAPE.leaf_index(link) as usize]);
        let factor = match step(SEED, &SHAPE, link, leaf).factor {
            Factor::Pool(_) => None,
            Factor::Filled(link) => Some(self.shown_factor(link)),
        };
        let before = before.map(|link| self.shown_state(link));
        ShownLink { before, factor, after: self.shown_state(link) }
    }

    fn show(&self) -> ShownLinks {
        let drawn = drawn_links(&SHAPE, SECRET, self.tree.root());
        ShownLinks { links: drawn.into_iter().map(|link| self.shown(link)).collect() }
    }
}

fn code(checked: Result<(), LeaseError>) -> Result<(), &'static str> {
    checked.map_err(|error| match error {
        LeaseError::Probe(why) => why,
        other => other.code(),
    })
}

/// One trace for all tests: its products take most of their time.
fn trace() -> &'static Trace {
    static TRACE: std::sync::OnceLock<Trace> = std::sync::OnceLock::new();
    TRACE.get_or_init(Trace::compute)
}

#[test]
fn a_computed_probe_is_proven() {
    let trace = trace();
    let shown = trace.show();
    assert_eq!(shown.links.len(), 32);
    assert_eq!(shown.check(&trace.drawn()), Ok(()));
    let bytes = shown.to_bytes();
    assert!(bytes.len() <= SHOWN_BYTES_MAX);
    assert_eq!(ShownLinks::from_bytes(&bytes), Ok(shown));
    assert!(ShownLinks::from_bytes(&bytes[1..]).is_err());
    assert!(ShownLinks::from_bytes(&vec![0; SHOWN_BYTES_MAX + 1]).is_err());
    // Both phases are among the drawn links, and the first one is checked, too.
    let all: Vec<ProbeLink> = (0..SHAPE.states() as u32)
        .map(|at| ProbeLink { device: at / 32, position: at % 32 })
        .collect();
    for link in all {
        let drawn = trace.drawn();
        assert_eq!(code(drawn.check(link, &trace.shown(link))), Ok(()), "{link:?}");
    }
}

#[test]
fn no_other_state_is_behind_a_link() {
    let trace = trace();
    let wrong = "a link is not the product that it should be";
    for link in [ProbeLink { device: 0, position: 0 }, ProbeLink { device: 1, position: 20 }] {
        let mut states = trace.states.clone();
        let at = SHAPE.leaf_index(link) as usize;
        // One element of 65,536 differs.
        states[at][77] = (states[at][77] + 1) % PROBE_FIELD;
        let forged = Trace::of(states);
        assert_eq!(code(forged.drawn().check(link, &forged.shown(link))), Err(wrong));
        // The links before and after it are of other states.
        let after = ProbeLink { position: link.position + 1, ..link };
        assert!(forged.drawn().check(after, &forged.shown(after)).is_err());
    }
}

#[test]
fn states_are_those_of_the_root() {
    let trace = trace();
    let (drawn, link) = (trace.drawn(), ProbeLink { device: 1, position: 10 });
    let shown = || trace.shown(link);
    let check = |shown: ShownLink| code(drawn.check(link, &shown));
    assert_eq!(check(shown()), Ok(()));
    let other = "a state is not the one that the root commits to";
    let elsewhere = trace.shown_state(ProbeLink { device: 0, position: 10 });
    assert_eq!(check(ShownLink { after: elsewhere.clone(), ..shown() }), Err(other));
    assert_eq!(check(ShownLink { before: Some(elsewhere.clone()), ..shown() }), Err(other));
    let factor = || shown().factor.unwrap();
    let with = |factor| check(ShownLink { factor: Some(factor), ..shown() });
    assert_eq!(with(factor()), Ok(()));
    assert_eq!(with(ShownFactor { state: elsewhere.clone(), ..factor() }), Err(other));
    assert_eq!(with(ShownFactor { before: Some(elsewhere), ..factor() }), Err(other));
    let no_before = "each link but the first one shows the state before it";
    assert_eq!(check(ShownLink { before: None, ..shown() }), Err(no_before));
    let first = ProbeLink { device: 0, position: 0 };
    let with_before = ShownLink { before: Some(shown().after), ..trace.shown(first) };
    assert_eq!(code(drawn.check(first, &with_before)), Err(no_before));
    let no_factor = "a link shows the state that it reads, and no other";
    assert_eq!(check(ShownLink { factor: None, ..shown() }), Err(no_factor));
    let with_factor = ShownLink { factor: Some(factor()), ..trace.shown(first) };
    assert_eq!(code(drawn.check(first, &with_factor)), Err(no_factor));
    let mut large = shown();
    large.after.state[3] = PROBE_FIELD;
    let no_matrix = "a state is not a matrix of numbers below 251";
    assert_eq!(check(large), Err(no_matrix));
    let mut short = shown();
    short.after.state.pop();
    assert_eq!(check(short), Err(no_matrix));
    let mut fewer = trace.show();
    fewer.links.pop();
    let drawn_once = "other links were drawn: show each drawn one once";
    assert_eq!(code(fewer.check(&drawn)), Err(drawn_once));
    let redrawn = DrawnProbe { secret: Digest([9; 32]), ..drawn };
    assert!(trace.show().check(&redrawn).is_err());
}

/// Filled states of zeros make each read equal to a public matrix, without a product: each shown read finds it.
#[test]
fn reads_of_made_up_states_are_found() {
    let mut states = trace().states.clone();
    let mut leaves = trace().leaves.clone();
    let zeros = vec![0; PROBE_MATRIX_BYTES];
    let all = (0..SHAPE.states() as usize)
        .map(|at| ProbeLink { device: at as u32 / 32, position: at as u32 % 32 });
    for link in all.clone() {
        let at = SHAPE.leaf_index(link) as usize;
        states[at] = match link.position < SHAPE.filled {
            true => zeros.clone(),
            false => pool_matrix(SEED, step(SEED, &SHAPE, link, Some(leaves[at - 1])).added),
        };
        leaves[at] = state_leaf(link, &states[at]);
    }
    let forged = Trace::of(states);
    let wrong = "a link is not the product that it should be";
    for link in all {
        let checked = code(forged.drawn().check(link, &forged.shown(link)));
        assert_eq!(checked, Err(wrong), "{link:?}");
    }
}

/// The number of a device and the seed change every matrix, and the leaf before a link chooses its matrices.
#[test]
fn a_step_follows_from_the_seed_and_the_state_before_it() {
    let link = ProbeLink { device: 1, position: 9 };
    let before = Some(Digest([1; 32]));
    let own = step(SEED, &SHAPE, link, before);
    assert!(matches!(own.factor, Factor::Filled(read) if read.position < SHAPE.filled));
    let others: Vec<ProbeStep> =
        (2..34).map(|byte| step(SEED, &SHAPE, link, Some(Digest([byte; 32])))).collect();
    let distinct: std::collections::BTreeSet<u8> = others.iter().map(|step| step.added).collect();
    assert!(distinct.len() > 20, "{distinct:?}");
    // Reads go round the devices, beginning with the next one.
    let read_from = |device, position| match step(
        SEED,
        &SHAPE,
        ProbeLink { device, position },
        before,
    )
    .factor
    {
        Factor::Filled(link) => link.device,
        Factor::Pool(_) => u32::MAX,
    };
    assert_eq!([8, 9, 10].map(|position| read_from(0, position)), [1, 0, 1]);
    assert_eq!([7, 8, 9].map(|position| read_from(1, position)), [u32::MAX, 0, 1]);
    assert_ne!(first_state(SEED, 0), first_state(SEED, 1));
    assert_ne!(first_state(SEED, 0), first_state(SECRET, 0));
    assert_ne!(pool_matrix(SEED, 0), pool_matrix(SEED, 1));
    assert_ne!(pool_matrix(SEED, 0), first_state(SEED, 0));
    assert!(pool_matrix(SEED, 0).iter().all(|byte| *byte < PROBE_FIELD));
}

#[test]
fn shapes_are_checked() {
    let code = |shape: ProbeShape| shape.check().map_err(|error| error.code());
    let small = |devices, filled, reads| ProbeShape { devices, filled, reads };
    for right in [small(1, 8, 24), small(64, 65_536, 196_608), SHAPE] {
        assert_eq!(code(right), Ok(()), "{right:?}");
    }
    for wrong in [
        small(0, 8, 24),
        small(65, 8, 24),
        small(1, 7, 24),
        small(1, 8, 23),
        small(64, 65_536, 196_609),
    ] {
        assert_eq!(code(wrong), Err("COMPUTE_INVALID"), "{wrong:?}");
    }
    assert_eq!((SHAPE.links(), SHAPE.states(), SHAPE.memory_bytes()), (32, 64, 8 << 16));
    assert_eq!(SHAPE.leaf_index(ProbeLink { device: 1, position: 3 }), 35);
    // All links of a small probe are drawn.
    let all = drawn_links(&small(1, 8, 24), SECRET, SEED);
    assert_eq!(all.len(), 32);
    let some = drawn_links(&SHAPE, SECRET, SEED);
    assert_eq!(some.len(), 32);
    assert!(some.iter().any(|link| link.device == 1) && some.iter().any(|link| link.device == 0));
    assert_ne!(some, drawn_links(&SHAPE, SECRET, SECRET));
}
