//! The settings of executors on Kubernetes.

use std::collections::BTreeMap;

/// The pods of executors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KubernetesPlan {
    /// The image of the pods.
    pub(crate) image: String,
    /// The claim of the volume that holds the state folder.
    pub(crate) claim: String,
    /// The folder in the volume; none is its root.
    pub(crate) sub_path: Option<String>,
    /// The namespace; none is that of the context.
    pub(crate) namespace: Option<String>,
    /// The program in the image.
    pub(crate) program: String,
    /// Limits of each pod, such as `nvidia.com/gpu`.
    pub(crate) limits: BTreeMap<String, String>,
    /// Starts several ranks in a pod.
    pub(crate) launcher: Option<Vec<String>>,
}
