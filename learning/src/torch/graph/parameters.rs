//! The parameters of rank 0 on their way to the other ranks, in the order in which a forward pass reads
//! them.

use std::collections::VecDeque;
use std::ops::Range;

use tch::{TchError, Tensor};

use super::net::GraphNet;
use super::pipeline::stage::segments;
use crate::engine::TrainError;
use crate::graph::RunObserver;
use crate::reduction::buckets;
use crate::torch::peers::{Arrival, Peers, TAIL};

/// Parameters that travel together.
struct ParameterBucket {
    /// The first node that reads one of them.
    first_node: usize,
    /// Their place in an aligned vector.
    range: Range<i64>,
}

/// The parameters of a step and of the next one. They travel in buckets; before them comes the head, with
/// the control of rank 0 and the buffers, which a step changes from its begin. Tensors that are not shared
/// do not travel.
pub(super) struct TravellingParameters {
    /// In the order of their first nodes.
    buckets: Vec<ParameterBucket>,
    /// The control's and the buffers' places in an aligned vector with a tail.
    head: Vec<Range<i64>>,
    /// Those that have not arrived, each with the first node that reads it.
    pending: VecDeque<(usize, Box<dyn Arrival>)>,
    /// Whether a forward pass ends only when everything has arrived.
    is_awaited_in_pass: bool,
    /// The failure of an arrival during a run.
    failure: Option<TrainError>,
}

impl TravellingParameters {
    /// Buckets of at least `bytes_min` bytes, if a tensor is not larger, of the travelling tensors that are
    /// shared.
    pub(super) fn new(
        net: &GraphNet<'_>,
        bytes_min: u64,
        is_shared: impl Fn(usize) -> bool,
    ) -> Self {
        let (ranges, segments) = (net.aligned_ranges().into_iter(), segments(net));
        let inputs = net.travelling_inputs();
        let nodes: Vec<usize> =
            inputs.map(|input| segments.first_use(input).unwrap_or(usize::MAX)).collect();
        let sizes: Vec<Range<u64>> =
            ranges.map(|range| range.start as u64..range.end as u64).collect();
        let bucket = |own: Range<usize>| ParameterBucket {
            first_node: nodes[own.clone()].iter().copied().min().unwrap_or(0),
            range: sizes[own.start].start as i64..sizes[own.end - 1].end as i64,
        };
        let mut all = Vec::new();
        let mut next = 0;
        // A bucket has no gaps: each run of shared tensors has buckets of its own.
        while next < sizes.len() {
            let end = (next..sizes.len()).find(|&at| !is_shared(at)).unwrap_or(sizes.len());
            let own = buckets(&sizes[next..end], bytes_min).into_iter();
            all.extend(own.map(|own| bucket(own.start + next..own.end + next)));
            next = end + 1;
        }
        all.sort_by_key(|bucket| (bucket.first_node, bucket.range.start));
        let length = net.aligned_length() as i64;
        let places = net.aligned_places();
        let buffers = places.filter(|(at, _, is_buffer)| *is_buffer && is_shared(*at));
        let buffers = buffers.map(|(_, range, _)| range.start as i64..range.end as i64);
        let head = std::iter::once(length..length + TAIL).chain(buffers).collect();
        let buckets = all;
        let (pending, is_awaited_in_pass) = (VecDeque::new(), false);
        Self { buckets, head, pending, is_awaited_in_pass, failure: None }
    }

    /// Begins to give the parameters of rank 0, with their tail and buffers, to all ranks. Another rank
    /// has the tail and the buffers when this returns.
    pub(super) fn share(&mut self, flat: &Tensor, peers: &mut dyn Peers) -> Result<(), TrainError> {
        self.wait_for_all()?;
        let places = self.head.iter();
        let places = places.map(|range| flat.f_narrow(0, range.start, range.end - range.start));
        let places = places.collect::<Result<Vec<Tensor>, TchError>>()?;
        let head = Tensor::f_cat(&places, 0)?;
        let arrival = peers.broadcast(&head)?;
        let is_first = peers.rank() == 0;
        for ParameterBucket { first_node, range } in &self.buckets {
            let own = flat.f_narrow(0, range.start, range.end - range.start)?;
            // Rank 0 has them.
            let node = if is_first { usize::MAX } else { *first_node };
            self.pending.push_back((node, peers.broadcast(&own)?));
        }
        // A pass of rank 0 ends with changed buffers, which must not travel.
        self.is_awaited_in_pass = !is_first || self.head.len() > 1;
        if is_first {
            self.pending.push_back((usize::MAX, arrival));
            return Ok(());
        }
        arrival.wait()?;
        let mut from = 0;
        for place in places {
            let length = place.size1()?;
            place.shallow_clone().f_copy_(&head.f_narrow(0, from, length)?)?;
            from += length;
        }
        Ok(())
    }

    /// Waits for all parameters.
    pub(super) fn wait_for_all(&mut self) -> Result<(), TrainError> {
        self.wait_until(usize::MAX)
    }

    /// Waits for the parameters that the nodes up to `node` read.
    fn wait_until(&mut self, node: usize) -> Result<(), TrainError> {
        while self.pending.front().is_some_and(|(first, _)| *first <= node) {
            if let Some((_, arrival)) = self.pending.pop_front() {
                arrival.wait()?;
            }
        }
        Ok(())
    }

    fn wait_in_run(&mut self, node: usize) -> Result<(), TchError> {
        self.wait_until(node).map_err(|error| {
            let text = error.to_string();
            self.failure = Some(error);
            TchError::Torch(text)
        })
    }

    /// The failure that ended a run, if it was one of an arrival.
    pub(super) fn take_failure(&mut self) -> Option<TrainError> {
        self.failure.take()
    }
}

/// Waits for parameters where a run reads them, if they come from another rank.
pub(super) struct ParameterGate<'p>(pub(super) &'p mut TravellingParameters);

impl RunObserver for ParameterGate<'_> {
    fn before_node(&mut self, node: usize) -> Result<(), TchError> {
        self.0.wait_in_run(node)
    }

    fn end_forward(&mut self) -> Result<(), TchError> {
        if self.0.is_awaited_in_pass { self.0.wait_in_run(usize::MAX) } else { Ok(()) }
    }
}
