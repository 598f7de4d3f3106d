//! What object_store's errors mean to Pando.
//!
//! object_store keeps its HTTP errors private, so that the status and the S3 error code are read from their text, here
//! and nowhere else; `tests/s3.rs` checks it against a real server.
//! Invariant: of what a server answered, only its error code and status are kept: never a header, a key or a body.

use std::error::Error as StdError;
use std::io;

use object_store::Error as StoreError;
use object_store::client::HttpError;

use super::objects::Failure;
use crate::error::SegmentError;

/// What a failed call means. `store` is the store's address for the message.
pub(super) fn classify(error: &StoreError, store: &str, local: bool) -> Failure {
    match (local, error) {
        (true, StoreError::NotFound { .. }) => Failure::Missing,
        (true, _) => classify_local(error, store),
        (false, _) => classify_remote(error, store),
    }
}

fn classify_local(error: &StoreError, store: &str) -> Failure {
    let Some(io) = causes(error).find_map(|cause| cause.downcast_ref::<io::Error>()) else {
        // Without an io::Error below, object_store found that the range is not in the file.
        return match error {
            StoreError::Generic { .. } => Failure::Short,
            _ => failed(store, "its task ended early", false),
        };
    };
    Failure::Other(classify_io(io, store))
}

/// What an error of the local file system means.
pub(super) fn classify_io(error: &io::Error, store: &str) -> SegmentError {
    use io::ErrorKind::*;
    let store = store.to_owned();
    let why = error.to_string();
    match error.kind() {
        StorageFull | QuotaExceeded => SegmentError::Full { store },
        PermissionDenied | ReadOnlyFilesystem => SegmentError::Forbidden { store, why },
        NotFound | NotADirectory => SegmentError::NoDirectory { path: store },
        Interrupted | WouldBlock | ResourceBusy => SegmentError::Failed { store, why, transient: true },
        _ => SegmentError::Failed { store, why, transient: false },
    }
}

fn classify_remote(error: &StoreError, store: &str) -> Failure {
    let text = error.to_string();
    if let Some((status, code)) = status_of(&text) {
        return classify_status(status, code, store);
    }
    let owned = store.to_owned();
    if text.contains("169.254.") {
        // The last resort, an instance's metadata service, is not there.
        let why = "neither variables, nor a profile, nor an instance role".to_owned();
        return Failure::Other(SegmentError::NoCredentials { why });
    }
    if causes(error).any(|cause| cause.is::<HttpError>()) {
        let why = causes(error).last().map(|cause| cause.to_string()).unwrap_or_default();
        return Failure::Other(SegmentError::Unreachable { store: owned, why });
    }
    match text.contains("redirect") {
        true => Failure::Other(SegmentError::Region { store: owned, why: "it redirects".into() }),
        false => failed(store, "its answer was not understood", true),
    }
}

fn classify_status(status: u16, code: Option<&str>, store: &str) -> Failure {
    let owned = store.to_owned();
    let why = code.map_or_else(|| format!("status {status}"), |code| format!("{code}, status {status}"));
    let other = match (status, code.unwrap_or_default()) {
        (_, "NoSuchBucket") => SegmentError::NoBucket { store: owned },
        (_, "InvalidBucketName") => {
            SegmentError::Address { url: owned, why: "the name of its bucket is not allowed".to_owned() }
        }
        (404, _) => return Failure::Missing,
        (416, _) => return Failure::Short,
        (
            _,
            "InvalidAccessKeyId"
            | "SignatureDoesNotMatch"
            | "ExpiredToken"
            | "InvalidToken"
            | "TokenRefreshRequired"
            | "NotSignedUp",
        )
        | (401, _) => SegmentError::Credentials { store: owned, why },
        (
            _,
            "AuthorizationHeaderMalformed"
            | "PermanentRedirect"
            | "TemporaryRedirect"
            | "IllegalLocationConstraintException",
        )
        | (300..=399, _) => SegmentError::Region { store: owned, why },
        (_, "RequestTimeTooSkewed") => return failed(store, "the clocks here and there differ too much", false),
        (403, _) => SegmentError::Forbidden { store: owned, why },
        (507, _) | (_, "XMinioStorageFull" | "QuotaExceeded") => SegmentError::Full { store: owned },
        (408 | 429 | 500.., _) | (_, "SlowDown" | "RequestTimeout" | "OperationAborted") => {
            return failed(store, &why, true);
        }
        _ => return failed(store, &why, false),
    };
    Failure::Other(other)
}

/// The status and the S3 error code in an error's text.
fn status_of(text: &str) -> Option<(u16, Option<&str>)> {
    let (_, rest) = text.split_once("status code: ").or_else(|| text.split_once("error response: "))?;
    let status = rest.get(..3).and_then(|digits| digits.parse().ok()).unwrap_or(500);
    let code = rest.split_once("<Code>").and_then(|(_, rest)| rest.split_once("</Code>")).map(|(code, _)| code);
    Some((status, code.filter(|code| code.len() <= 64 && code.bytes().all(|b| b.is_ascii_alphanumeric()))))
}

fn failed(store: &str, why: &str, transient: bool) -> Failure {
    Failure::Other(SegmentError::Failed { store: store.to_owned(), why: why.to_owned(), transient })
}

fn causes<'a>(error: &'a (dyn StdError + 'static)) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    let mut next = Some(error);
    std::iter::from_fn(move || {
        let cause = next?;
        next = cause.source();
        Some(cause)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_and_a_code_are_found() {
        let text = "Generic S3 error: Error performing PUT http://x in 1ms - Server returned non-2xx status code: 503 \
                    Service Unavailable: <?xml?><Error><Code>SlowDown</Code></Error>";
        assert_eq!(status_of(text), Some((503, Some("SlowDown"))));
        assert_eq!(status_of("status code: 403 Forbidden: "), Some((403, None)));
        assert_eq!(status_of("status code: 403: <Code>a<b</Code>"), Some((403, None)), "nothing strange is passed on");
        assert_eq!(status_of("connection refused"), None);
    }

    #[test]
    fn statuses_are_told_apart() {
        let of = |status, code| match classify_status(status, code, "s3://b") {
            Failure::Missing => "missing".to_owned(),
            Failure::Short => "short".to_owned(),
            Failure::Other(e) => {
                format!("{e:?}").split([' ', '{']).next().unwrap().to_owned() + if e.is_transient() { "+" } else { "" }
            }
        };
        for (status, code, meaning) in [
            (404, Some("NoSuchKey"), "missing"),
            (404, None, "missing"),
            (404, Some("NoSuchBucket"), "NoBucket"),
            (416, Some("InvalidRange"), "short"),
            (403, Some("SignatureDoesNotMatch"), "Credentials"),
            (400, Some("ExpiredToken"), "Credentials"),
            (403, Some("AccessDenied"), "Forbidden"),
            (301, None, "Region"),
            (503, Some("SlowDown"), "Failed+"),
            (500, None, "Failed+"),
            (429, None, "Failed+"),
            (507, Some("XMinioStorageFull"), "Full"),
            (400, Some("InvalidRequest"), "Failed"),
        ] {
            assert_eq!(of(status, code), meaning, "{status} {code:?}");
        }
    }
}
