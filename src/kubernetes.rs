//! Executors as jobs of Kubernetes: one `Job` with one pod for each lease.
//!
//! The pod mounts a volume claim at the daemon's state folder, so that both see the folder of the executor at one path.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use florin_participant::leases::executors::{
    ExecutorBackend, ExecutorCommand, ExecutorError, ExecutorStart, ExecutorState, executor_log,
    executor_log_end,
};
use k8s_openapi::api::batch::v1::{Job, JobStatus};
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use kube::{Client, Config};
use serde_json::json;
use tokio::runtime::{Builder, Runtime};

use crate::kubernetes_plan::KubernetesPlan;

/// Label of all jobs of executors, with its value.
const LABEL: (&str, &str) = ("app.kubernetes.io/managed-by", "florin-executors");
/// Time between two lists of the jobs.
const LIST_EVERY: Duration = Duration::from_millis(1_000);
/// Longest request.
const REQUEST_LIMIT: Duration = Duration::from_secs(10);
/// Most jobs of a page of a list, and most pages.
const JOBS_MAX: u32 = 500;
const PAGES_MAX: u32 = 20;
/// A job is removed this many seconds after its end, if the daemon does not remove it.
const REMOVED_AFTER_S: u32 = 3_600;

/// The state of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
enum JobPhase {
    Waiting,
    Running,
    Ended(String),
}

/// The phases of jobs by their names, or why they cannot be listed.
type ListedJobs = Result<BTreeMap<String, JobPhase>, String>;

/// Executors as jobs of Kubernetes.
pub(crate) struct KubernetesBackend {
    runtime: Runtime,
    jobs: Api<Job>,
    command: ExecutorCommand,
    plan: KubernetesPlan,
    /// The folder at which pods mount the claim.
    mount: String,
    listed: Option<(Instant, ListedJobs)>,
}

impl std::fmt::Debug for KubernetesBackend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KubernetesBackend").field("plan", &self.plan).finish_non_exhaustive()
    }
}

fn failed(why: impl std::fmt::Display) -> ExecutorError {
    ExecutorError::Program { program: "kubernetes".to_owned(), why: why.to_string() }
}

impl KubernetesBackend {
    /// A backend for the cluster of the kubeconfig, or of the pod in which the daemon runs.
    ///
    /// # Errors
    /// [`ExecutorError::Program`] without a cluster.
    pub(crate) fn new(
        options: Vec<String>,
        plan: KubernetesPlan,
        state: &Path,
    ) -> Result<Self, ExecutorError> {
        let runtime = Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let config = runtime.block_on(Config::infer());
        let config = config.map_err(|error| failed(format!("{error}: set KUBECONFIG")))?;
        Self::at(config, runtime, options, plan, state)
    }

    fn at(
        config: Config,
        runtime: Runtime,
        options: Vec<String>,
        plan: KubernetesPlan,
        state: &Path,
    ) -> Result<Self, ExecutorError> {
        let limit = Some(REQUEST_LIMIT);
        let mut config = config;
        (config.connect_timeout, config.read_timeout, config.write_timeout) = (limit, limit, limit);
        // Each request has one limit here: the daemon also answers for other deposits.
        (config.default_retry, config.reset_reader_on_write) = (false, true);
        let namespace = plan.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
        let client = {
            let _context = runtime.enter();
            Client::try_from(config).map_err(failed)?
        };
        let jobs = Api::namespaced(client, &namespace);
        let command = vec![plan.program.clone(), "execute-segments".to_owned()];
        let mount = std::path::absolute(state).map_err(failed)?.display().to_string();
        let command = ExecutorCommand { command, options };
        Ok(Self { runtime, jobs, command, plan, mount, listed: None })
    }

    /// The job of an executor.
    fn job(&self, start: &ExecutorStart<'_>) -> Result<Job, ExecutorError> {
        let KubernetesPlan { image, claim, sub_path, limits, launcher, .. } = &self.plan;
        let count = start.devices.len().to_string();
        let launcher = launcher.iter().flatten().filter(|_| start.devices.len() > 1);
        let words = launcher.map(|word| word.replace("{count}", &count));
        let words: Vec<String> = words.chain(self.command.of(start.folder)).collect();
        let log = executor_log(start.folder).display().to_string();
        // The shell's own words are fixed, and those of the command are its arguments.
        let script = "log=$1; shift; exec \"$@\" >\"$log\" 2>&1";
        let shell = ["/bin/sh", "-c", script, "sh", &log].map(str::to_owned);
        let command: Vec<String> = shell.into_iter().chain(words).collect();
        let labels = json!({ LABEL.0: LABEL.1 });
        let job = json!({
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": { "name": start.name, "labels": labels },
            "spec": {
                "backoffLimit": 0,
                "completions": 1,
                "parallelism": 1,
                "ttlSecondsAfterFinished": REMOVED_AFTER_S,
                "template": {
                    "metadata": { "labels": labels },
                    "spec": {
                        "restartPolicy": "Never",
                        // An executor asks the cluster for nothing.
                        "automountServiceAccountToken": false,
                        "enableServiceLinks": false,
                        "volumes": [
                            { "name": "state", "persistentVolumeClaim": { "claimName": claim } }
                        ],
                        "containers": [{
                            "name": "executor",
                            "image": image,
                            "command": command,
                            "volumeMounts": [
                                { "name": "state", "mountPath": self.mount, "subPath": sub_path }
                            ],
                            "resources": { "limits": limits },
                            "securityContext": { "allowPrivilegeEscalation": false },
                        }],
                    },
                },
            },
        });
        serde_json::from_value(job).map_err(failed)
    }

    /// The phases of all jobs of executors, which are listed again once the list, or the error, is old.
    fn phases(&mut self) -> Result<&BTreeMap<String, JobPhase>, ExecutorError> {
        let is_old = |at: &Instant| at.elapsed() >= LIST_EVERY;
        if self.listed.as_ref().is_none_or(|(at, _)| is_old(at)) {
            let listed = self.list().map_err(|error| error.to_string());
            self.listed = Some((Instant::now(), listed));
        }
        match self.listed.as_ref().map(|(_, listed)| listed) {
            Some(Ok(phases)) => Ok(phases),
            Some(Err(why)) => Err(failed(why)),
            None => Err(failed("no list of jobs")),
        }
    }

    /// Lists all jobs of executors, page by page.
    fn list(&self) -> Result<BTreeMap<String, JobPhase>, ExecutorError> {
        let (key, value) = LABEL;
        let mut which = ListParams::default().labels(&format!("{key}={value}")).limit(JOBS_MAX);
        let mut phases = BTreeMap::new();
        for _ in 0..PAGES_MAX {
            let jobs = self.answer(self.jobs.list(&which))?.map_err(failed)?;
            let page = jobs
                .items
                .into_iter()
                .filter_map(|job| Some((job.metadata.name?, phase(job.status.as_ref()))));
            phases.extend(page);
            match jobs.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => which = which.continue_token(&token),
                None => return Ok(phases),
            }
        }
        Err(failed(format!("more than {JOBS_MAX} times {PAGES_MAX} jobs of executors")))
    }

    /// The answer to a request, within its limit.
    fn answer<T>(&self, request: impl Future<Output = T>) -> Result<T, ExecutorError> {
        let limited = async { tokio::time::timeout(REQUEST_LIMIT, request).await };
        let answer = self.runtime.block_on(limited);
        answer.map_err(|_| failed(format!("no answer within {} s", REQUEST_LIMIT.as_secs())))
    }
}

/// The phase of a job by its status.
fn phase(status: Option<&JobStatus>) -> JobPhase {
    let Some(status) = status else { return JobPhase::Waiting };
    let conditions = status.conditions.iter().flatten();
    let ended = conditions.filter(|condition| condition.status == "True").find(|condition| {
        matches!(condition.type_.as_str(), "Complete" | "Failed" | "FailureTarget")
    });
    match ended {
        Some(condition) => {
            let texts = [condition.reason.clone(), condition.message.clone()];
            JobPhase::Ended(texts.into_iter().flatten().collect::<Vec<_>>().join(": "))
        }
        None if status.ready.unwrap_or(0) > 0 => JobPhase::Running,
        None => JobPhase::Waiting,
    }
}

impl ExecutorBackend for KubernetesBackend {
    fn name(&self) -> &'static str {
        "kubernetes"
    }

    fn check(&mut self) -> Result<(), ExecutorError> {
        self.phases().map(drop)
    }

    fn start(&mut self, start: &ExecutorStart<'_>) -> Result<String, ExecutorError> {
        let job = self.job(start)?;
        let how = PostParams::default();
        let created = self.answer(self.jobs.create(&how, &job));
        self.listed = None;
        match created? {
            Ok(_) => Ok(start.name.to_owned()),
            // The answer to an earlier request was lost: the name has a random part.
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(start.name.to_owned()),
            Err(error) => Err(failed(error)),
        }
    }

    fn state(&mut self, handle: &str, folder: &Path) -> Result<ExecutorState, ExecutorError> {
        let found = self.phases()?.get(handle).cloned();
        Ok(match found {
            Some(JobPhase::Waiting) => ExecutorState::Waiting("its pod is not ready".to_owned()),
            Some(JobPhase::Running) => ExecutorState::Running,
            Some(JobPhase::Ended(why)) => ExecutorState::Ended(log_or(folder, why)),
            None => ExecutorState::Ended(log_or(folder, "its job was removed".to_owned())),
        })
    }

    fn cancel(&mut self, handle: &str) -> Result<(), ExecutorError> {
        self.listed = None;
        let how = DeleteParams::background();
        match self.answer(self.jobs.delete(handle, &how))? {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            Err(error) => Err(failed(error)),
        }
    }

    fn cancel_by_name(&mut self, name: &str) -> Result<(), ExecutorError> {
        self.cancel(name)
    }

    fn outlives_daemon(&self) -> bool {
        true
    }
}

/// The end of an executor's log, or another reason.
fn log_or(folder: &Path, why: String) -> String {
    let log = executor_log_end(folder);
    if log.is_empty() { why } else { log }
}

#[cfg(test)]
#[path = "kubernetes_tests.rs"]
mod tests;
