//! The computation of a probe: all devices fill their memory, and then read each other's states.

mod card;
mod show;

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use florin_compute::{
    Factor, PROBE_FIELD, PROBE_POOL, PROBE_SIDE, ProbeLink, ProbeShape, first_state, pool_matrix,
    state_leaf, step,
};
use florin_learning::field_products::{FIELD_PRIME, FIELD_SIDE, FieldProducts};
use florin_protocol::Digest;
use florin_protocol::holdout::HoldoutTree;

pub use card::{CardMeasurement, MeasuredCard, measure_card};

/// The distance of the read states that stay in memory; those between are computed again if they are shown.
const SAVED_EACH: usize = 64;

// The rules and the engines name the same field and the same matrices.
const _: () = assert!(PROBE_FIELD == FIELD_PRIME && PROBE_SIDE == FIELD_SIDE);

/// The products of the devices of a probe, one for each.
pub type ProbeDevices = Vec<Box<dyn FieldProducts>>;

/// How far a probe has come, and whether it goes on.
#[derive(Debug, Default)]
pub struct ProbeProgress {
    links: AtomicU64,
    is_stopped: AtomicBool,
}

impl ProbeProgress {
    /// Links of all devices that are computed.
    #[must_use]
    pub fn links(&self) -> u64 {
        self.links.load(Ordering::Relaxed)
    }

    /// Ends the computation.
    pub fn stop(&self) {
        self.is_stopped.store(true, Ordering::Relaxed);
    }

    fn count(&self) -> bool {
        self.links.fetch_add(1, Ordering::Relaxed);
        !self.is_stopped.load(Ordering::Relaxed)
    }
}

/// A computed probe. It has all filled states in memory, until its links are shown.
pub struct ComputedProbe {
    shape: ProbeShape,
    seed: Digest,
    pool: Vec<Vec<u8>>,
    chains: Vec<Chain>,
    tree: HoldoutTree,
}

/// The states of a device.
#[derive(Default)]
struct Chain {
    filled: Vec<Vec<u8>>,
    /// Each [`SAVED_EACH`]-th read state.
    saved: Vec<Vec<u8>>,
    /// The leaf of each state.
    leaves: Vec<Digest>,
}

/// The public part of a probe, and what its links need besides the filled states.
#[derive(Clone, Copy)]
struct Matrices<'a> {
    shape: &'a ProbeShape,
    seed: Digest,
    pool: &'a [Vec<u8>],
}

impl<'a> Matrices<'a> {
    /// The state behind a link. `filled` are the filled states of each device as far as they are there.
    fn next(
        self,
        products: &mut dyn FieldProducts,
        link: ProbeLink,
        (before, leaf): (&[u8], Option<Digest>),
        filled: impl Fn(ProbeLink) -> Option<&'a [u8]>,
    ) -> Option<Vec<u8>> {
        let step = step(self.seed, self.shape, link, leaf);
        let factor = match step.factor {
            Factor::Pool(number) => self.pool.get(usize::from(number))?.as_slice(),
            Factor::Filled(read) => filled(read)?,
        };
        let added = self.pool.get(usize::from(step.added))?;
        Some(products.multiply_add(before, factor, added))
    }

    fn fill(
        self,
        products: &mut dyn FieldProducts,
        device: u32,
        progress: &ProbeProgress,
    ) -> Option<Chain> {
        let mut chain = Chain::default();
        let first = first_state(self.seed, device);
        for position in 0..self.shape.filled {
            let link = ProbeLink { device, position };
            let before = chain.filled.last().unwrap_or(&first);
            let leaf = chain.leaves.last().copied();
            let state = self.next(products, link, (before, leaf), |_| None)?;
            chain.leaves.push(state_leaf(link, &state));
            chain.filled.push(state);
            if !progress.count() {
                return None;
            }
        }
        Some(chain)
    }

    /// The reads of a device: the saved states, and the leaf of each state.
    fn read(
        self,
        products: &mut dyn FieldProducts,
        device: u32,
        chains: &'a [Chain],
        progress: &ProbeProgress,
    ) -> Option<(Vec<Vec<u8>>, Vec<Digest>)> {
        let own = chains.get(device as usize)?;
        let mut before = own.filled.last()?.clone();
        let mut leaf = own.leaves.last().copied();
        let (mut saved, mut leaves) = (Vec::new(), Vec::new());
        for read in 0..self.shape.reads {
            let link = ProbeLink { device, position: self.shape.filled + read };
            let filled = |read: ProbeLink| filled_state(chains, read);
            let state = self.next(products, link, (&before, leaf), filled)?;
            let own_leaf = state_leaf(link, &state);
            leaf = Some(own_leaf);
            leaves.push(own_leaf);
            if (read as usize).is_multiple_of(SAVED_EACH) {
                saved.push(state.clone());
            }
            before = state;
            if !progress.count() {
                return None;
            }
        }
        Some((saved, leaves))
    }
}

fn filled_state(chains: &[Chain], read: ProbeLink) -> Option<&[u8]> {
    let state = chains.get(read.device as usize)?.filled.get(read.position as usize)?;
    Some(state.as_slice())
}

/// Runs one thread for each device, and collects the results in their order.
fn on_devices<T: Send>(
    devices: &mut [Box<dyn FieldProducts>],
    work: impl Fn(u32, &mut dyn FieldProducts) -> Option<T> + Sync,
) -> Option<Vec<T>> {
    let results = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for (device, products) in devices.iter_mut().enumerate() {
            let (work, results) = (&work, &results);
            scope.spawn(move || {
                let found = work(device as u32, products.as_mut());
                let mut results = results.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                results.push((device, found));
            });
        }
    });
    let mut results = results.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    results.sort_by_key(|(device, _)| *device);
    results.into_iter().map(|(_, found)| found).collect()
}

impl ComputedProbe {
    /// Computes a probe. `None` if it was stopped, or if there are not as many devices as its shape has.
    #[must_use]
    pub fn compute(
        seed: Digest,
        shape: ProbeShape,
        devices: &mut ProbeDevices,
        progress: &ProbeProgress,
    ) -> Option<Self> {
        if devices.len() != shape.devices as usize {
            return None;
        }
        let pool: Vec<Vec<u8>> =
            (0..PROBE_POOL).map(|number| pool_matrix(seed, number as u8)).collect();
        let matrices = Matrices { shape: &shape, seed, pool: &pool };
        let mut chains =
            on_devices(devices, |device, products| matrices.fill(products, device, progress))?;
        let read = on_devices(devices, |device, products| {
            matrices.read(products, device, &chains, progress)
        })?;
        for (chain, (saved, leaves)) in chains.iter_mut().zip(read) {
            chain.saved = saved;
            chain.leaves.extend(leaves);
        }
        let leaves = chains.iter().flat_map(|chain| chain.leaves.iter().copied()).collect();
        let tree = HoldoutTree::new(leaves);
        Some(Self { shape, seed, pool, chains, tree })
    }

    /// The root of all states.
    #[must_use]
    pub fn root(&self) -> Digest {
        self.tree.root()
    }
}

#[cfg(test)]
mod tests;
