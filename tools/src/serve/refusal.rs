//! Refused requests, in the words of each interface. Clients act on some of them: agents shorten a conversation that does
//! not fit, and wait after a 429 or a 503.

use hyper::header::{HeaderValue, RETRY_AFTER};
use hyper::{Response, StatusCode};
use serde_json::{Value, json};

use super::fields::Face;
use super::http::{Body, json_response};

/// A refused request: the status and the reason.
#[derive(Debug)]
pub struct Refusal {
    pub status: StatusCode,
    pub message: String,
    /// OpenAI's name of the error, if it has one.
    code: Option<&'static str>,
    /// The field at fault.
    param: Option<&'static str>,
    /// The tokens of a prompt that does not fit, and those that would.
    tokens: Option<(usize, usize)>,
}

impl Refusal {
    /// A refusal of an invalid request, with status 400.
    pub fn bad(message: impl Into<String>) -> Self {
        Refusal::new(StatusCode::BAD_REQUEST, message)
    }

    pub fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Refusal {
            status,
            message: message.into(),
            code: None,
            param: None,
            tokens: None,
        }
    }

    /// Names the error as OpenAI does, and the field at fault.
    pub fn named(mut self, code: &'static str, param: &'static str) -> Self {
        (self.code, self.param) = (Some(code), Some(param));
        self
    }

    /// The prompt has more tokens than the context.
    pub fn context_full(tokens: usize, context: usize) -> Self {
        let message = format!(
            "This model's maximum context length is {context} tokens (--context). However, your messages resulted in \
             {tokens} tokens. Please reduce the length of the messages."
        );
        Refusal {
            tokens: Some((tokens, context)),
            ..Refusal::bad(message).named("context_length_exceeded", "messages")
        }
    }

    /// The kind of error, as OpenAI's and Anthropic's APIs name it.
    fn kind(&self) -> &'static str {
        match self.status.as_u16() {
            401 => "authentication_error",
            403 => "permission_error",
            404 => "not_found_error",
            413 => "request_too_large",
            429 => "rate_limit_error",
            503 => "overloaded_error",
            500 => "api_error",
            _ => "invalid_request_error",
        }
    }

    /// The response in the form that clients of an interface read.
    pub fn response(&self, face: Face) -> Response<Body> {
        let mut response = json_response(&self.value(face));
        *response.status_mut() = self.status;
        if let StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS = self.status {
            let headers = response.headers_mut();
            headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }

    /// The error as an object.
    pub fn value(&self, face: Face) -> Value {
        let mut error = json!({ "type": self.kind(), "message": self.message });
        match face {
            Face::Ollama => return json!({ "error": self.message }),
            Face::Anthropic => {
                if let Some((tokens, context)) = self.tokens {
                    let message =
                        format!("prompt is too long: {tokens} tokens > {context} maximum");
                    error["message"] = message.into();
                }
                return json!({ "type": "error", "error": error });
            }
            _ => {}
        }
        error["code"] = self.code.map_or(json!(self.status.as_u16()), Value::from);
        error["param"] = json!(self.param);
        if let Some((tokens, context)) = self.tokens {
            // llama.cpp's clients read the numbers.
            error["n_prompt_tokens"] = tokens.into();
            error["n_ctx"] = context.into();
        }
        json!({ "error": error })
    }
}

impl From<waterline::Error> for Refusal {
    fn from(error: waterline::Error) -> Self {
        use waterline::Error as Library;
        let status = match error {
            Library::ContextFull { .. }
            | Library::Template { .. }
            | Library::Invalid { .. }
            | Library::Tokenizer { .. } => StatusCode::BAD_REQUEST,
            // The time limit cancelled the request. If the client left instead, this response is never sent.
            Library::Cancelled { .. } => StatusCode::REQUEST_TIMEOUT,
            // The request may succeed when other requests have ended.
            Library::Memory { .. } | Library::Device { .. } => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Refusal::new(status, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_context_is_told_in_the_words_that_agents_look_for() {
        let refusal = Refusal::context_full(319, 64);
        let chat = refusal.value(Face::Chat);
        assert_eq!(chat["error"]["code"], "context_length_exceeded");
        assert_eq!(chat["error"]["n_prompt_tokens"], 319);
        let sentence = chat["error"]["message"].as_str().expect("a sentence");
        assert!(sentence.contains("maximum context length is 64 tokens"));
        let messages = refusal.value(Face::Anthropic);
        assert_eq!(messages["error"]["type"], "invalid_request_error");
        let sentence = "prompt is too long: 319 tokens > 64 maximum";
        assert_eq!(messages["error"]["message"], sentence);
        assert!(refusal.value(Face::Ollama)["error"].is_string());
    }
}
