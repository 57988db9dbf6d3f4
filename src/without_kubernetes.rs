//! Stands in for `kubernetes` in a build without that feature: a policy that names it is refused.

use std::path::Path;

use florin_participant::leases::executors::{
    ExecutorBackend, ExecutorError, ExecutorStart, ExecutorState,
};

use crate::failure::Failure;
use crate::kubernetes_plan::KubernetesPlan;

/// Executors on Kubernetes; this build has none.
#[derive(Debug)]
pub(crate) enum KubernetesBackend {}

impl KubernetesBackend {
    /// Refuses the backend.
    ///
    /// # Errors
    /// `FEATURE_NOT_BUILT`.
    pub(crate) fn new(_: Vec<String>, _: KubernetesPlan, _: &Path) -> anyhow::Result<Self> {
        Err(Failure::not_built("kubernetes", "executors on Kubernetes").into())
    }
}

impl ExecutorBackend for KubernetesBackend {
    fn name(&self) -> &'static str {
        match *self {}
    }

    fn check(&mut self) -> Result<(), ExecutorError> {
        match *self {}
    }

    fn start(&mut self, _: &ExecutorStart<'_>) -> Result<String, ExecutorError> {
        match *self {}
    }

    fn state(&mut self, _: &str, _: &Path) -> Result<ExecutorState, ExecutorError> {
        match *self {}
    }

    fn cancel(&mut self, _: &str) -> Result<(), ExecutorError> {
        match *self {}
    }

    fn cancel_by_name(&mut self, _: &str) -> Result<(), ExecutorError> {
        match *self {}
    }

    fn outlives_daemon(&self) -> bool {
        match *self {}
    }
}
