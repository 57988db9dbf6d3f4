//! Which devices of a provider work on which orders.
//!
//! The crate owns the decision alone. [`decide`] maps a [`ClusterState`] and a [`Trigger`] to a
//! [`ScheduleDecision`]: orders that start, orders that get other devices, and orders that stop for
//! others. [`ClusterState::apply`] checks a decision completely before it changes anything. Time is
//! an argument in nanoseconds, and all arithmetic is on integers. The crate has no clock, no
//! randomness, no input and no output; it never starts a process and has no knowledge of money.
//!
//! * [`StepProfile`] has the measured time of a step on 1, 2, … devices, and its knee.
//! * [`TrainingOrder`] is the work of one renter: profiles, steps, memory and place in the queue.
//! * [`ClusterState`] has the nodes, the queue and the running orders.
//! * [`SchedulePolicy`] selects the rule; [`MarbleSettings`] are those of the knee.
//! * [`simulate`] runs a policy under virtual time.

mod board;
mod decision;
mod devices;
pub mod limits;
mod order;
mod packing;
mod policy;
mod profile;
mod simulation;
mod state;

pub use decision::{AllotmentChange, DecisionError, ScheduleDecision};
pub use devices::{Allotment, DeviceKind, DeviceNode, DeviceSet};
pub use order::{OrderError, OrderId, TrainingOrder};
pub use packing::{PackedRate, PackingClass, PackingError, PackingTable};
pub use policy::{IntervalSettings, MarbleSettings, SchedulePolicy, Trigger, decide};
pub use profile::{ProfileError, StepProfile};
pub use simulation::{OrderArrival, OrderOutcome, SimulationError, SimulationLog, simulate};
pub use state::{ClusterError, ClusterState, RunningOrder, SubmitError};
