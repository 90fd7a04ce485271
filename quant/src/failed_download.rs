//! Detection of text that a failed download left in place of a file.

/// Returns the kind of the text that starts with `bytes`, and how to get the intended file; `None` if the kind is unknown.
pub fn failed_download(bytes: &[u8]) -> Option<(&'static str, &'static str)> {
    let start = bytes[..bytes.len().min(256)].trim_ascii_start();
    let begins = |text: &str| {
        let start = start.get(..text.len());
        start.is_some_and(|start| start.eq_ignore_ascii_case(text.as_bytes()))
    };
    if begins("version https://git-lfs.github.com/spec/") {
        let fetch =
            "the file that it points to: run `git lfs pull` in its folder, or download it again";
        return Some(("a git-lfs pointer", fetch));
    }
    let page = begins("<!doctype html") || begins("<html");
    let refusal = [
        "Entry not found",
        "Invalid username or password",
        "Access to model",
    ];
    if page || refusal.into_iter().any(begins) {
        let found = if page {
            "a page of HTML"
        } else {
            "a server's refusal"
        };
        return Some((
            found,
            "the file itself: the download failed (a login is needed, or the link is wrong)",
        ));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::failed_download;

    #[test]
    fn what_failed_downloads_leave_is_known() {
        let found = |text: &str| failed_download(text.as_bytes()).map(|(found, _)| found);
        let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 4\n";
        assert_eq!(found(pointer), Some("a git-lfs pointer"));
        assert_eq!(found("\n <!DOCTYPE html>"), Some("a page of HTML"));
        assert_eq!(found("<HTML><body>"), Some("a page of HTML"));
        assert_eq!(found("Entry not found"), Some("a server's refusal"));
        for other in ["", "GGUF", "{}", "<h", "version 2"] {
            assert_eq!(found(other), None, "{other}");
        }
    }
}
