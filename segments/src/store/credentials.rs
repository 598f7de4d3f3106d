//! Where S3 credentials and settings come from: `AWS_*` variables, then the profile files of the AWS tools.
//!
//! Not here: what is done with them ([`super::s3`]). Credentials that another service hands out (instance, container,
//! web identity) are left to the object_store crate; single sign-on, assumed roles and credential processes are not
//! read. The files are read once, when the store is opened.
//! Invariant: nothing here prints a secret; the `Debug` of [`Environment`] and [`Profile`] hides them.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use crate::error::SegmentError;

/// The variables that settings come from: the process's, or a test's own.
#[derive(Clone, Default)]
pub struct Environment(BTreeMap<String, String>);

/// One profile of the AWS files.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Profile {
    pub key_id: Option<String>,
    pub secret: Option<String>,
    pub token: Option<String>,
    pub region: Option<String>,
    pub endpoint: Option<String>,
    /// A key of the profile that says that its credentials come from elsewhere.
    pub elsewhere: Option<String>,
}

impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl fmt::Debug for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Profile {{ region: {:?}, endpoint: {:?}, .. }}", self.region, self.endpoint)
    }
}

impl Environment {
    /// The process's variables.
    pub fn of_process() -> Environment {
        let text = |(key, value): (std::ffi::OsString, std::ffi::OsString)| {
            Some((key.into_string().ok()?, value.into_string().ok()?))
        };
        Environment(std::env::vars_os().filter_map(text).collect())
    }

    /// These variables and no others.
    pub fn of<'a>(variables: impl IntoIterator<Item = (&'a str, &'a str)>) -> Environment {
        Environment(variables.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect())
    }

    /// A variable that is set and not empty.
    pub(crate) fn value(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// All `AWS_*` variables that are set and not empty.
    pub(crate) fn aws(&self) -> impl Iterator<Item = (&str, &str)> {
        let all = self.0.iter().map(|(key, value)| (key.as_str(), value.as_str()));
        all.filter(|(key, value)| key.starts_with("AWS_") && !value.is_empty())
    }

    /// The chosen profile. A profile that was named and is nowhere to be found is an error; no files are not.
    pub(crate) fn profile(&self) -> Result<Profile, SegmentError> {
        let named = self.value("AWS_PROFILE").or_else(|| self.value("AWS_DEFAULT_PROFILE"));
        let name = named.unwrap_or("default");
        let mut profile = Profile::default();
        let mut found = false;
        // The credentials file wins over the config file, as in the AWS tools.
        for (variable, file, prefix) in
            [("AWS_SHARED_CREDENTIALS_FILE", "credentials", ""), ("AWS_CONFIG_FILE", "config", "profile ")]
        {
            let Some(text) = self.read(variable, file)? else { continue };
            found |= profile.fill(&text, name, prefix);
        }
        match named {
            Some(name) if !found => {
                let why = format!("the profile {name:?} is neither in ~/.aws/credentials nor in ~/.aws/config");
                Err(SegmentError::NoCredentials { why })
            }
            _ => Ok(profile),
        }
    }

    fn read(&self, variable: &str, file: &str) -> Result<Option<String>, SegmentError> {
        let home = || self.value("HOME").map(|home| PathBuf::from(home).join(".aws").join(file));
        let Some(path) = self.value(variable).map(PathBuf::from).or_else(home) else { return Ok(None) };
        match std::fs::read_to_string(&path) {
            Ok(text) => Ok(Some(text)),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(SegmentError::NoCredentials { why: format!("{} cannot be read: {e}", path.display()) }),
        }
    }
}

impl Profile {
    /// Takes what is not known yet from the section `name` of a file, and says whether the section is there.
    fn fill(&mut self, text: &str, name: &str, prefix: &str) -> bool {
        let mut inside = false;
        let mut found = false;
        for line in text.lines() {
            if let Some(section) = line.trim().strip_prefix('[').and_then(|rest| rest.split(']').next()) {
                let section = section.trim();
                let bare = section.strip_prefix(prefix).map(str::trim);
                inside = bare == Some(name) || (name == "default" && section == "default");
                found |= inside;
            } else if inside && !line.starts_with([' ', '\t', '#', ';']) {
                // An indented line belongs to a nested setting of another service.
                if let Some((key, value)) = line.split_once('=') {
                    self.set(key.trim(), value.trim());
                }
            }
        }
        found
    }

    fn set(&mut self, key: &str, value: &str) {
        if value.is_empty() {
            return;
        }
        let field = match key {
            "aws_access_key_id" => &mut self.key_id,
            "aws_secret_access_key" => &mut self.secret,
            "aws_session_token" => &mut self.token,
            "region" => &mut self.region,
            "endpoint_url" => &mut self.endpoint,
            "role_arn" | "sso_session" | "sso_start_url" | "credential_process" => {
                self.elsewhere.get_or_insert_with(|| key.to_owned());
                return;
            }
            _ => return,
        };
        field.get_or_insert_with(|| value.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CREDENTIALS: &str = "# mine\n[default]\naws_access_key_id = AKIDEFAULT\naws_secret_access_key=s3cr=et/+\n\n\
                               [ ci ]\naws_access_key_id=AKICI\r\naws_secret_access_key=ci-secret\r\n\
                               aws_session_token = tok\r\n";
    const CONFIG: &str = "[default]\nregion = eu-north-1\ns3 =\n  region = nested\n\
                          [profile ci]\nregion=us-west-2\naws_access_key_id = ignored\n\
                          [profile sso]\nsso_session = x\n";

    fn files() -> (tempfile::TempDir, Vec<(&'static str, String)>) {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join(".aws")).unwrap();
        std::fs::write(dir.path().join(".aws/credentials"), CREDENTIALS).unwrap();
        std::fs::write(dir.path().join(".aws/config"), CONFIG).unwrap();
        let home = dir.path().to_str().unwrap().to_owned();
        (dir, vec![("HOME", home)])
    }

    fn profile(variables: &[(&'static str, String)], more: &[(&'static str, &str)]) -> Result<Profile, SegmentError> {
        let variables = variables.iter().map(|(key, value)| (*key, value.as_str()));
        Environment::of(variables.chain(more.iter().copied())).profile()
    }

    #[test]
    fn the_default_profile_is_read_from_both_files() {
        let (_dir, home) = files();
        let got = profile(&home, &[]).unwrap();
        assert_eq!(got.key_id.as_deref(), Some("AKIDEFAULT"));
        assert_eq!(got.secret.as_deref(), Some("s3cr=et/+"));
        assert_eq!((got.token, got.region.as_deref()), (None, Some("eu-north-1")));
    }

    #[test]
    fn a_named_profile_is_read_and_the_credentials_file_wins() {
        let (_dir, home) = files();
        let got = profile(&home, &[("AWS_PROFILE", "ci")]).unwrap();
        assert_eq!(got.key_id.as_deref(), Some("AKICI"));
        assert_eq!(got.secret.as_deref(), Some("ci-secret"));
        assert_eq!((got.token.as_deref(), got.region.as_deref()), (Some("tok"), Some("us-west-2")));
        let got = profile(&home, &[("AWS_PROFILE", "sso")]).unwrap();
        assert_eq!((got.key_id, got.elsewhere.as_deref()), (None, Some("sso_session")));
    }

    #[test]
    fn a_missing_profile_is_an_error_and_missing_files_are_not() {
        let (_dir, home) = files();
        let error = profile(&home, &[("AWS_PROFILE", "nope")]).unwrap_err();
        assert!(error.to_string().contains("\"nope\""), "{error}");
        assert_eq!(profile(&[], &[]).unwrap(), Profile::default());
        assert_eq!(profile(&[], &[("HOME", "/nonexistent")]).unwrap(), Profile::default());
    }

    #[test]
    fn secrets_are_not_printed() {
        let (_dir, home) = files();
        let printed = format!("{:?}", profile(&home, &[]).unwrap());
        assert!(!printed.contains("s3cr") && !printed.contains("AKID"), "{printed}");
        let printed = format!("{:?}", Environment::of([("AWS_SECRET_ACCESS_KEY", "hush")]));
        assert!(!printed.contains("hush"), "{printed}");
    }
}
