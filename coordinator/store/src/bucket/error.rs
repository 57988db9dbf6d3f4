//! Errors of a bucket. No message contains a credential or the response of the service, which may
//! repeat parts of a signed request.

#[cfg(feature = "bucket")]
use object_store::Error;

/// Why a request to a bucket failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BucketError {
    /// The bucket does not exist.
    #[error(
        "bucket {0} does not exist: create it, or correct blobs.url and blobs.region \
         [BUCKET_MISSING]"
    )]
    Missing(String),
    /// The bucket rejects the credentials, or they do not allow read, write and list.
    #[error(
        "bucket {0} rejects the credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or \
         use the machine's role, and allow read, write and list [BUCKET_FORBIDDEN]"
    )]
    Forbidden(String),
    /// The bucket does not respond, or not as specified.
    #[error("bucket {name} cannot be reached: {why} [BUCKET_UNREACHABLE]")]
    Unreachable {
        /// The bucket.
        name: String,
        /// The cause.
        why: String,
    },
    /// Too many requests are waiting for the bucket.
    #[error("too many requests are waiting for bucket {0}: try again in a moment [BUCKET_BUSY]")]
    Busy(String),
    /// The program has no client for buckets.
    #[error(
        "blobs.url = {0:?}, and this program was built without the feature `bucket`: build it with \
         `cargo build --release`, or remove blobs.url [FEATURE_NOT_BUILT]"
    )]
    NotBuilt(String),
    /// No object exists under the key.
    #[error("bucket {0} has no such blob")]
    NoObject(String),
}

#[cfg(feature = "bucket")]
impl BucketError {
    /// Converts an error of the client for the bucket called `name`.
    pub(super) fn from_client_error(name: &str, error: &Error) -> Self {
        let name = name.to_owned();
        match error {
            Error::NotFound { source, .. } if source.to_string().contains("NoSuchBucket") => {
                Self::Missing(name)
            }
            Error::NotFound { .. } => Self::NoObject(name),
            Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => Self::Forbidden(name),
            other => Self::Unreachable { name, why: innermost_cause(other) },
        }
    }
}

/// The innermost cause, without the response of the service.
#[cfg(feature = "bucket")]
fn innermost_cause(error: &Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    let text = cause.to_string();
    let own = text.split('<').next().unwrap_or_default().trim_end_matches([' ', ':', '\n']);
    own.chars().take(200).collect()
}

#[cfg(all(test, feature = "bucket"))]
mod tests {
    use super::*;

    fn generic(source: &'static str) -> Error {
        Error::Generic { store: "S3", source: source.into() }
    }

    #[test]
    fn an_error_contains_the_cause_but_not_the_service_response() {
        let error =
            generic("Server returned non-2xx status code: 503 : <Error>AKIA, signature</Error>");
        let message = BucketError::from_client_error("s3://a", &error).to_string();
        assert_eq!(
            message,
            "bucket s3://a cannot be reached: Server returned non-2xx status code: 503 \
             [BUCKET_UNREACHABLE]"
        );
    }

    #[test]
    fn a_missing_bucket_and_a_missing_blob_are_different_errors() {
        let lost = |source: &'static str| {
            BucketError::from_client_error(
                "b",
                &Error::NotFound { path: "k".to_owned(), source: source.into() },
            )
        };
        assert_eq!(lost("404: <Code>NoSuchBucket</Code>"), BucketError::Missing("b".to_owned()));
        assert_eq!(lost("404: <Code>NoSuchKey</Code>"), BucketError::NoObject("b".to_owned()));
        let denied = Error::PermissionDenied { path: "k".to_owned(), source: "403".into() };
        assert_eq!(
            BucketError::from_client_error("b", &denied),
            BucketError::Forbidden("b".to_owned())
        );
    }
}
