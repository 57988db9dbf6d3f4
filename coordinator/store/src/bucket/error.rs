//! Why a bucket did not do what it was asked. No message has a key in it, nor what the service wrote: that may repeat
//! parts of a signed request.

use object_store::Error;

/// Why a bucket did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BucketError {
    /// There is no such bucket.
    #[error(
        "there is no bucket {0}: make it, or correct blobs.url and blobs.region [BUCKET_MISSING]"
    )]
    Missing(String),
    /// It does not take these credentials, or does not let them read, write and list.
    #[error(
        "bucket {0} refuses these credentials: they come from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or from the \
         machine's role, and must be allowed to read, write and list [BUCKET_FORBIDDEN]"
    )]
    Forbidden(String),
    /// It does not answer, or not as it should.
    #[error("bucket {name} cannot be reached: {why} [BUCKET_UNREACHABLE]")]
    Unreachable {
        /// Which bucket.
        name: String,
        /// What happened.
        why: String,
    },
    /// More is asked of it than it answers in time.
    #[error("too many wait for bucket {0}: try again in a moment [BUCKET_BUSY]")]
    Busy(String),
    /// There is nothing under that key.
    #[error("bucket {0} has no such blob")]
    NoObject(String),
}

impl BucketError {
    /// The bucket called `name` answered with this.
    pub(super) fn of(name: &str, error: &Error) -> Self {
        let name = name.to_owned();
        match error {
            Error::NotFound { source, .. } if source.to_string().contains("NoSuchBucket") => {
                Self::Missing(name)
            }
            Error::NotFound { .. } => Self::NoObject(name),
            Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => Self::Forbidden(name),
            other => Self::Unreachable { name, why: why(other) },
        }
    }
}

/// The innermost cause, without what the service wrote.
fn why(error: &Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    let text = cause.to_string();
    let own = text.split('<').next().unwrap_or_default().trim_end_matches([' ', ':', '\n']);
    own.chars().take(200).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generic(source: &'static str) -> Error {
        Error::Generic { store: "S3", source: source.into() }
    }

    #[test]
    fn an_error_says_what_happened_and_not_what_the_service_wrote() {
        let error =
            generic("Server returned non-2xx status code: 503 : <Error>AKIA, signature</Error>");
        let said = BucketError::of("s3://a", &error).to_string();
        assert_eq!(
            said,
            "bucket s3://a cannot be reached: Server returned non-2xx status code: 503 [BUCKET_UNREACHABLE]"
        );
    }

    #[test]
    fn a_bucket_that_is_not_there_is_told_from_a_blob_that_is_not() {
        let lost = |source: &'static str| {
            BucketError::of("b", &Error::NotFound { path: "k".to_owned(), source: source.into() })
        };
        assert_eq!(lost("404: <Code>NoSuchBucket</Code>"), BucketError::Missing("b".to_owned()));
        assert_eq!(lost("404: <Code>NoSuchKey</Code>"), BucketError::NoObject("b".to_owned()));
        let denied = Error::PermissionDenied { path: "k".to_owned(), source: "403".into() };
        assert_eq!(BucketError::of("b", &denied), BucketError::Forbidden("b".to_owned()));
    }
}
