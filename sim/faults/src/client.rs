//! The client side of participants, providers and buyers: one request at a time, retried until
//! there is a response, and one timer.

use super::context::{SimContext, SimEvent};
use super::message::{Body, CoordinatorReply, CoordinatorRequest};
use super::network::ProcessId;

/// Timeout of a request in milliseconds; doubled with each retry up to the maximum.
const TIMEOUT_MS: u64 = 400;
const TIMEOUT_MS_MAX: u64 = 3_000;

#[derive(Clone, Debug)]
struct OpenRequest {
    id: u64,
    ask: CoordinatorRequest,
    until: u64,
    timeout: u64,
}

/// A process's connection to the coordinator.
#[derive(Clone, Debug)]
pub(super) struct RequestChannel {
    process: ProcessId,
    open: Option<OpenRequest>,
    request_count: u64,
    /// Identifies the newest timer; older timers are ignored.
    timer: u64,
}

impl RequestChannel {
    /// The connection of a process.
    #[must_use]
    pub(super) const fn new(process: ProcessId) -> Self {
        Self { process, open: None, request_count: 0, timer: 0 }
    }

    /// Sends a request, which is retried until there is a response.
    pub(super) fn send(&mut self, world: &mut SimContext, ask: CoordinatorRequest) {
        self.request_count += 1;
        let (id, patience) = (self.request_count, TIMEOUT_MS);
        world.send(self.process, ProcessId::Coordinator, id, &Body::Request(ask.clone()));
        self.open = Some(OpenRequest { id, ask, until: world.now + patience, timeout: patience });
        self.set_timer(world, patience);
    }

    /// Whether a request is open; retries it after its timeout.
    pub(super) fn retry_if_due(&mut self, world: &mut SimContext) -> bool {
        let Some(open) = &mut self.open else { return false };
        if world.now >= open.until {
            world.send(
                self.process,
                ProcessId::Coordinator,
                open.id,
                &Body::Request(open.ask.clone()),
            );
            open.timeout = open.timeout.saturating_mul(2).min(TIMEOUT_MS_MAX);
            open.until = world.now + open.timeout;
        }
        let left = open.until.saturating_sub(world.now);
        self.set_timer(world, left);
        true
    }

    /// The request that `reply` answers; `None` for a late, duplicate or transient response.
    pub(super) fn take_request(
        &mut self,
        id: u64,
        reply: CoordinatorReply,
    ) -> Option<(CoordinatorRequest, CoordinatorReply)> {
        let open = self.open.take_if(|open| open.id == id && !reply.is_transient())?;
        Some((open.ask, reply))
    }

    /// Drops the open request of a crashed process.
    pub(super) fn reset(&mut self) {
        self.open = None;
        self.timer += 1;
    }

    /// Sets the timer and cancels an earlier one.
    pub(super) fn set_timer(&mut self, world: &mut SimContext, pause: u64) {
        self.timer += 1;
        world.schedule(pause.max(1), SimEvent::Timer { node: self.process, ticket: self.timer });
    }

    /// Whether this is the newest timer.
    #[must_use]
    pub(super) const fn is_current_timer(&self, ticket: u64) -> bool {
        ticket == self.timer
    }
}
