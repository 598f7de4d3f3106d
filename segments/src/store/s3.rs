//! S3 and what speaks its language: the client's settings.
//!
//! Objects are put whole: a segment has at most 16 MiB and a bit, its client uploads several at once, and parts would
//! cost two more round trips and leave unfinished uploads behind. Every put is signed with the SHA-256 of its bytes,
//! which the server checks. Retries are ours ([`super::retry`]), so object_store's are off.

use std::sync::Once;
use std::time::Duration;

use object_store::RetryConfig;
use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey};
use object_store::client::ClientConfigKey;

use super::credentials::{Environment, Profile};
use crate::error::SegmentError;

/// Variables that lead object_store to a service that hands out credentials.
const CREDENTIAL_SERVICES: [&str; 4] = [
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_SKIP_SIGNATURE",
];

/// Opens a bucket; nothing is sent yet. `endpoint` goes before the environment's.
pub(super) fn open(bucket: &str, endpoint: Option<&str>, environment: &Environment) -> Result<AmazonS3, SegmentError> {
    install_tls();
    let profile = environment.profile()?;
    let endpoint = endpoint
        .or_else(|| environment.value("AWS_ENDPOINT_URL_S3"))
        .or_else(|| environment.value("AWS_ENDPOINT_URL"))
        .or_else(|| environment.value("AWS_ENDPOINT"))
        .or(profile.endpoint.as_deref());
    let mut builder = AmazonS3Builder::new();
    for (key, value) in environment.aws().filter(|(key, _)| !is_secret(key)) {
        if let Ok(key) = key.to_ascii_lowercase().parse::<AmazonS3ConfigKey>() {
            builder = builder.with_config(key, value);
        }
    }
    if environment.value("AWS_REGION").or_else(|| environment.value("AWS_DEFAULT_REGION")).is_none() {
        builder = builder.with_region(profile.region.as_deref().unwrap_or("us-east-1"));
    }
    builder = with_credentials(builder, environment, &profile, endpoint.is_some())?;
    builder = with_address(builder, bucket, endpoint)?;
    builder
        .with_disable_bulk_delete(true)
        .with_retry(RetryConfig { max_retries: 0, retry_timeout: Duration::ZERO, ..RetryConfig::default() })
        .with_config(AmazonS3ConfigKey::Client(ClientConfigKey::ConnectTimeout), "3 seconds")
        // Ours ends a try earlier; this one only must not be shorter.
        .with_config(AmazonS3ConfigKey::Client(ClientConfigKey::Timeout), "10 minutes")
        .build()
        .map_err(|_| SegmentError::Address {
            url: format!("s3://{bucket}"),
            why: "an AWS_* variable has a bad value".into(),
        })
}

fn is_secret(variable: &str) -> bool {
    matches!(variable, "AWS_ACCESS_KEY_ID" | "AWS_SECRET_ACCESS_KEY" | "AWS_SESSION_TOKEN" | "AWS_TOKEN")
}

fn with_credentials(
    builder: AmazonS3Builder,
    environment: &Environment,
    profile: &Profile,
    custom_endpoint: bool,
) -> Result<AmazonS3Builder, SegmentError> {
    let none = |why: &str| Err(SegmentError::NoCredentials { why: why.to_owned() });
    let of_environment = (environment.value("AWS_ACCESS_KEY_ID"), environment.value("AWS_SECRET_ACCESS_KEY"));
    let of_profile = (profile.key_id.as_deref(), profile.secret.as_deref());
    let (keys, token) = match of_environment {
        (None, None) => (of_profile, profile.token.as_deref()),
        _ => (of_environment, environment.value("AWS_SESSION_TOKEN").or_else(|| environment.value("AWS_TOKEN"))),
    };
    match keys {
        (Some(id), Some(secret)) => {
            let builder = builder.with_access_key_id(id).with_secret_access_key(secret);
            Ok(match token {
                Some(token) => builder.with_token(token),
                None => builder,
            })
        }
        (Some(_), None) => none("an access key id without its secret"),
        (None, Some(_)) => none("a secret access key without its id"),
        (None, None) if CREDENTIAL_SERVICES.iter().any(|key| environment.value(key).is_some()) => Ok(builder),
        (None, None) => match &profile.elsewhere {
            Some(key) => none(&format!(
                "the profile uses {key}, which is not read here; `aws configure export-credentials --format env` \
                 prints what is"
            )),
            // Only on AWS can there be an instance role.
            None if custom_endpoint => none("neither variables nor a profile"),
            None => Ok(builder),
        },
    }
}

fn with_address(
    builder: AmazonS3Builder,
    bucket: &str,
    endpoint: Option<&str>,
) -> Result<AmazonS3Builder, SegmentError> {
    let builder = builder.with_bucket_name(bucket);
    let Some(endpoint) = endpoint else {
        // A dot in the bucket's name would not fit AWS's certificate.
        return Ok(builder.with_allow_http(false).with_virtual_hosted_style_request(!bucket.contains('.')));
    };
    let (plain, host) = match (endpoint.strip_prefix("http://"), endpoint.strip_prefix("https://")) {
        (Some(host), _) => (true, host),
        (_, Some(host)) => (false, host),
        _ => return Err(bad_endpoint(endpoint, "its endpoint must begin with https:// or http://")),
    };
    if host.contains('@') {
        return Err(bad_endpoint("...", "its endpoint must not hold credentials"));
    }
    if host.trim_matches('/').is_empty() {
        return Err(bad_endpoint(endpoint, "its endpoint names no host"));
    }
    let builder = builder.with_config(AmazonS3ConfigKey::S3Endpoint, endpoint.trim_end_matches('/'));
    Ok(builder.with_allow_http(plain).with_virtual_hosted_style_request(false))
}

fn bad_endpoint(url: &str, why: &str) -> SegmentError {
    SegmentError::Address { url: url.to_owned(), why: why.to_owned() }
}

/// Chooses the TLS library of the process, unless it has one.
fn install_tls() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // An error says that another part of the program has chosen already.
        let _ = rustls::crypto::ring::default_provider().install_default();
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: [(&str, &str); 2] = [("AWS_ACCESS_KEY_ID", "id"), ("AWS_SECRET_ACCESS_KEY", "hush")];

    fn error(endpoint: Option<&str>, variables: &[(&str, &str)]) -> String {
        open("bucket", endpoint, &Environment::of(variables.iter().copied())).unwrap_err().to_string()
    }

    #[test]
    fn keys_of_the_environment_are_enough() {
        let environment = Environment::of(KEYS.into_iter().chain([("AWS_REGION", "eu-west-1")]));
        open("bucket", None, &environment).unwrap();
        open("bucket", Some("http://127.0.0.1:9000"), &environment).unwrap();
    }

    #[test]
    fn what_is_missing_is_said() {
        let endpoint = Some("http://127.0.0.1:9000");
        assert!(error(endpoint, &[]).contains("neither variables nor a profile"));
        assert!(error(endpoint, &KEYS[..1]).contains("without its secret"));
        assert!(error(endpoint, &KEYS[1..]).contains("without its id"));
        assert!(error(Some("localhost:9000"), &KEYS).contains("https://"));
        let told = error(Some("http://me:hush@localhost"), &KEYS);
        assert!(told.contains("must not hold credentials") && !told.contains("hush"), "{told}");
    }

    #[test]
    fn plain_http_is_for_an_http_endpoint_alone() {
        let environment = Environment::of(KEYS.into_iter().chain([("AWS_ALLOW_HTTP", "true")]));
        let debug = |endpoint| format!("{:?}", open("bucket", endpoint, &environment).unwrap());
        assert!(debug(Some("http://localhost")).contains("allow_http: Parsed(true)"));
        assert!(debug(Some("https://localhost")).contains("allow_http: Parsed(false)"));
        assert!(debug(None).contains("allow_http: Parsed(false)"));
    }
}
