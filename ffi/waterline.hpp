// waterline for C++17: handles that free themselves, and exceptions instead of statuses. It needs only this header and waterline.h, which
// documents each call.
#ifndef WATERLINE_HPP
#define WATERLINE_HPP

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "waterline.h"

namespace waterline {

// Thrown when a call does not return WL_OK.
class Error : public std::runtime_error {
public:
    explicit Error(wl_status status) : std::runtime_error(wl_last_error()), status_(status) {}
    wl_status status() const noexcept { return status_; }

private:
    wl_status status_;
};

inline void check(wl_status status)
{
    if (status != WL_OK)
        throw Error(status);
}

// Parameters with their defaults.
template <typename Params, wl_status (*init)(Params *, size_t)>
struct WithDefaults : Params {
    WithDefaults() { check(init(this, sizeof(Params))); }
};
using ModelParams = WithDefaults<wl_model_params, wl_model_params_init>;
using SessionParams = WithDefaults<wl_session_params, wl_session_params_init>;
using SamplerParams = WithDefaults<wl_sampler_params, wl_sampler_params_init>;
using StoreParams = WithDefaults<wl_store_params, wl_store_params_init>;
using GenerateParams = WithDefaults<wl_generate_params, wl_generate_params_init>;
using RenderParams = WithDefaults<wl_render_params, wl_render_params_init>;

template <typename Info>
Info with_size()
{
    Info info{};
    info.size = sizeof(Info);
    return info;
}

struct FreeModel {
    void operator()(wl_model *model) const noexcept { wl_model_free(model); }
};
struct FreeStore {
    void operator()(wl_store *store) const noexcept { wl_store_free(store); }
};
struct FreeSession {
    void operator()(wl_session *session) const noexcept { wl_session_free(session); }
};
struct FreeAnswerParser {
    void operator()(wl_answer_parser *parser) const noexcept { wl_answer_parser_free(parser); }
};
struct FreeBatch {
    void operator()(wl_batch *batch) const noexcept { wl_batch_free(batch); }
};

// A model. Movable, and frees itself; its sessions outlive it.
class Model {
public:
    static Model open(const std::string &path, const ModelParams &params = {})
    {
        wl_model *model = nullptr;
        check(wl_model_open(path.c_str(), &params, &model));
        return Model(model);
    }

    static Model from_memory(const void *bytes, size_t length, const ModelParams &params = {})
    {
        wl_model *model = nullptr;
        check(wl_model_from_memory(bytes, length, &params, &model));
        return Model(model);
    }

    static Model builtin(const ModelParams &params = {})
    {
        wl_model *model = nullptr;
        check(wl_model_builtin(&params, &model));
        return Model(model);
    }

    wl_model_info info() const
    {
        auto info = with_size<wl_model_info>();
        check(wl_model_get_info(get(), &info));
        return info;
    }

    std::string name() const
    {
        const char *name = nullptr;
        check(wl_model_name(get(), &name));
        return name;
    }

    // The device its sessions compute on, with the reason if the library chose it.
    std::string device() const
    {
        const char *device = nullptr;
        check(wl_model_device(get(), &device));
        return device;
    }

    std::string spec_json() const
    {
        const char *json = nullptr;
        check(wl_model_spec_json(get(), &json));
        return json;
    }

    // Remarks about its files for the user, one sentence per line.
    std::string notes() const
    {
        const char *notes = nullptr;
        check(wl_model_notes(get(), &notes));
        return notes;
    }

    // The sampling parameters of its sessions by default, with those that its files state.
    wl_sampler_params sampler() const
    {
        auto params = with_size<wl_sampler_params>();
        check(wl_model_get_sampler(get(), &params));
        return params;
    }

    // The text of a conversation, as the model's template writes it.
    std::string render(const RenderParams &params) const
    {
        size_t length = 0;
        check(wl_chat_render(get(), &params, nullptr, 0, &length));
        std::string text(length + 1, '\0');
        check(wl_chat_render(get(), &params, text.data(), text.size(), &length));
        text.resize(length);
        return text;
    }

    wl_plan plan(const SessionParams &params = {}) const
    {
        auto plan = with_size<wl_plan>();
        check(wl_plan_model(get(), &params, &plan));
        return plan;
    }

    std::vector<uint32_t> tokenize(std::string_view text, bool special = false) const
    {
        // A text usually has fewer tokens than bytes, but the tokenizer's prefix may add some.
        std::vector<uint32_t> tokens(text.size() + 16);
        size_t count = 0;
        wl_status status;
        while ((status = wl_tokenize(get(), text.data(), text.size(), special, tokens.data(), tokens.size(), &count)) ==
               WL_ERROR_ROOM)
            tokens.resize(count);
        check(status);
        tokens.resize(count);
        return tokens;
    }

    // The exact bytes, which may begin or end inside a character.
    std::string detokenize(const std::vector<uint32_t> &tokens) const
    {
        size_t length = 0;
        check(wl_detokenize(get(), tokens.data(), tokens.size(), nullptr, 0, &length));
        std::string bytes(length + 1, '\0');
        check(wl_detokenize(get(), tokens.data(), tokens.size(), bytes.data(), bytes.size(), &length));
        bytes.resize(length);
        return bytes;
    }

    wl_model *get() const noexcept { return model_.get(); }

private:
    explicit Model(wl_model *model) : model_(model) {}
    std::unique_ptr<wl_model, FreeModel> model_;
};

// Checkpoints that sessions share: params.store = store.get(). Movable, and frees itself; sessions keep the parts they need alive.
class Store {
public:
    explicit Store(const StoreParams &params = {})
    {
        wl_store *store = nullptr;
        check(wl_store_new(&params, &store));
        store_.reset(store);
    }

    wl_store_stats stats() const
    {
        auto stats = with_size<wl_store_stats>();
        check(wl_store_get_stats(get(), &stats));
        return stats;
    }

    void clear() { check(wl_store_clear(get())); }
    void flush() { check(wl_store_flush(get())); }
    wl_store *get() const noexcept { return store_.get(); }

private:
    std::unique_ptr<wl_store, FreeStore> store_;
};

// A part of an answer, as in wl_answer_part.
struct Part {
    wl_part_kind kind;
    size_t call;
    std::string text;
    std::string id;
};

// Splits the text of an answer into parts. Movable, and frees itself.
class AnswerParser {
public:
    // `tools` is the JSON of Session::tools, and the end of `prompt` says whether the answer begins inside a thought.
    explicit AnswerParser(const Model &model, std::string_view tools = {}, std::string_view prompt = {})
    {
        wl_answer_parser *parser = nullptr;
        check(wl_answer_parser_new(model.get(), tools.data(), tools.size(), prompt.data(), prompt.size(), &parser));
        parser_.reset(parser);
    }

    // Adds bytes of the answer and returns the parts that they complete.
    std::vector<Part> push(std::string_view text)
    {
        check(wl_answer_push(get(), text.data(), text.size()));
        return parts();
    }

    // Ends the answer and returns the remaining parts; `is_cut` if a limit ended it.
    std::vector<Part> finish(bool is_cut = false)
    {
        check(wl_answer_finish(get(), is_cut));
        return parts();
    }

    // The parts that have not been returned yet.
    std::vector<Part> parts()
    {
        std::vector<Part> parts;
        for (auto part = with_size<wl_answer_part>();;) {
            check(wl_answer_next(get(), &part));
            if (part.kind == WL_PART_NONE)
                return parts;
            parts.push_back({static_cast<wl_part_kind>(part.kind), part.call,
                             part.text ? std::string(part.text, part.length) : std::string(), part.id ? part.id : ""});
        }
    }

    // The answer so far as a message in JSON.
    std::string json() const
    {
        const char *json = nullptr;
        size_t length = 0;
        check(wl_answer_json(get(), &json, &length));
        return {json, length};
    }

    wl_answer_parser *get() const noexcept { return parser_.get(); }

private:
    friend class Session;
    explicit AnswerParser(wl_answer_parser *parser) : parser_(parser) {}
    std::unique_ptr<wl_answer_parser, FreeAnswerParser> parser_;
};

// A function that the model may call.
struct Tool {
    std::string name;
    // {"type": "function", "function": {"name", "description", "parameters"}}
    std::string schema;
    // Receives the arguments, a JSON object, and returns the result. It may throw: the exception propagates out of say_with_tools.
    std::function<std::string(const std::string &arguments)> call;
};

// The logits of a session, in the session's memory: for (float logit : session.logits()).
struct Logits {
    const float *first;
    size_t count;
    const float *begin() const noexcept { return first; }
    const float *end() const noexcept { return first + count; }
    size_t size() const noexcept { return count; }
    float operator[](size_t token) const noexcept { return first[token]; }
};

// A session. Movable, and frees itself. It serves one call at a time, except cancel().
class Session {
public:
    // Receives a piece of text; false stops. It may throw: the exception propagates out of the generating call.
    using OnText = std::function<bool(std::string_view)>;

    // A token, its log-probability (NaN unless params.logprobs is 1), and the text that it completes.
    struct Token {
        uint32_t id;
        float logprob;
        std::string_view text;
    };

    // Callbacks of a generation; each may be empty, and each may throw.
    struct Hooks {
        // Returning false stops after the token.
        std::function<bool(const Token &)> on_token;
        // Its changes to the logits apply to the next choice only.
        std::function<void(float *logits, size_t count)> on_logits;
    };

    explicit Session(const Model &model, const SessionParams &params = {})
    {
        wl_session *session = nullptr;
        check(wl_session_new(model.get(), &params, &session));
        session_.reset(session);
    }

    Session fork() const
    {
        wl_session *session = nullptr;
        check(wl_session_fork(get(), &session));
        return Session(session);
    }

    wl_session_info info() const
    {
        auto info = with_size<wl_session_info>();
        check(wl_session_get_info(get(), &info));
        return info;
    }

    void feed(const std::vector<uint32_t> &tokens) { check(wl_feed(get(), tokens.data(), tokens.size(), nullptr)); }

    // The vector of a text of these tokens (wl_embed_tokenize); the session forgets everything else.
    std::vector<float> embed(const std::vector<uint32_t> &tokens, const wl_embed_params *params = nullptr)
    {
        size_t length = 0;
        check(wl_embed(get(), tokens.data(), tokens.size(), params, nullptr, 0, &length));
        std::vector<float> vector(length);
        check(wl_embed(get(), tokens.data(), tokens.size(), params, vector.data(), vector.size(), &length));
        return vector;
    }

    uint32_t sample()
    {
        uint32_t token = 0;
        check(wl_sample(get(), &token));
        return token;
    }

    uint32_t step()
    {
        uint32_t token = 0;
        check(wl_step(get(), &token));
        return token;
    }

    Logits logits() const
    {
        Logits logits{};
        check(wl_logits(get(), &logits.first, &logits.count));
        return logits;
    }

    wl_generate_result generate(const OnText &on_text, const GenerateParams &params = {}, const Hooks &hooks = {})
    {
        return run({on_text, hooks, nullptr}, params,
                   [&](const wl_generate_params *with, wl_text_fn function, void *user, wl_generate_result *result) {
                       return wl_generate(get(), with, function, user, result);
                   });
    }

    wl_generate_result say(std::string_view message, const OnText &on_text, const GenerateParams &params = {},
                           const Hooks &hooks = {})
    {
        return run({on_text, hooks, nullptr}, params,
                   [&](const wl_generate_params *with, wl_text_fn function, void *user, wl_generate_result *result) {
                       return wl_chat_say(get(), message.data(), message.size(), with, function, user, result);
                   });
    }

    // Receives a part of an answer; false stops. It may throw.
    using OnPart = std::function<bool(const Part &)>;

    // Sends a message, runs the functions that the answer calls, and sends their results, until an answer calls none, is cut or stopped, or
    // `most_rounds` answers have called some. Calls of unknown functions get an error as their result. Returns the result of the last answer.
    wl_generate_result say_with_tools(std::string_view message, const std::vector<Tool> &tools, const OnPart &on_part = {},
                                      const GenerateParams &params = {}, size_t most_rounds = 16)
    {
        std::string schemas;
        for (const auto &tool : tools)
            schemas += (schemas.empty() ? "[" : ",") + tool.schema;
        this->tools(schemas.empty() ? "[]" : schemas + "]");
        for (size_t round = 0;; round++) {
            std::vector<std::pair<std::string, std::string>> calls;
            auto parser = this->parser();
            auto take = [&](const std::vector<Part> &parts) {
                for (const auto &part : parts) {
                    if (part.kind == WL_PART_CALL_BEGINS)
                        calls.emplace_back(part.text, "");
                    else if (part.kind == WL_PART_CALL_ARGUMENTS && !calls.empty())
                        calls.back().second += part.text;
                    if (on_part && !on_part(part))
                        return false;
                }
                return true;
            };
            auto on_text = [&](std::string_view piece) { return take(parser.push(piece)); };
            auto result = round == 0 ? say(message, on_text, params) : generate(on_text, params);
            bool goes_on = take(parser.finish(result.finish != WL_FINISH_END)) && result.finish == WL_FINISH_END;
            if (calls.empty() || !goes_on || round == most_rounds)
                return result;
            std::vector<std::string> found;
            for (const auto &call : calls) {
                found.push_back("error: there is no function " + call.first);
                for (const auto &tool : tools)
                    if (tool.name == call.first)
                        found.back() = tool.call(call.second.empty() ? "{}" : call.second);
            }
            results(found);
        }
    }

    // The parser of the running or next answer.
    AnswerParser parser() const
    {
        wl_answer_parser *parser = nullptr;
        check(wl_chat_parser(get(), &parser));
        return AnswerParser(parser);
    }

    // A parser that has read a complete answer: its parts(), or its json().
    AnswerParser parse(std::string_view answer, bool is_cut = false) const
    {
        wl_answer_parser *parser = nullptr;
        check(wl_chat_parse(get(), answer.data(), answer.size(), is_cut, &parser));
        return AnswerParser(parser);
    }

    // Adds the results of the calls in the last answer, in their order; generate() then gives the next answer.
    void results(const std::vector<std::string> &results)
    {
        std::vector<const char *> pointers;
        for (const auto &result : results)
            pointers.push_back(result.c_str());
        check(wl_chat_results(get(), pointers.data(), pointers.size()));
    }

    // Begins a generation, or the answer to a message, which next() or a batch advances.
    void start(const GenerateParams &params = {}) { check(wl_generate_start(get(), &params)); }
    void start_answer(std::string_view message, const GenerateParams &params = {})
    {
        check(wl_chat_start(get(), message.data(), message.size(), &params));
    }

    // The next piece of that generation, valid until the next call; at the end its data() is NULL, and `result` is filled.
    std::string_view next(wl_generate_result *result = nullptr)
    {
        const char *text = nullptr;
        size_t length = 0;
        check(wl_generate_next(get(), &text, &length, result));
        return {text, length};
    }

    // The numbers of tokens of a history that were reused and read.
    struct HistoryRead {
        size_t reused;
        size_t read;
    };

    // Makes the session one that has read these tokens and nothing else; returns the number of tokens that were not read again.
    size_t read_history(const std::vector<uint32_t> &tokens)
    {
        size_t reused = 0;
        check(wl_session_read_history(get(), tokens.data(), tokens.size(), &reused));
        return reused;
    }

    void checkpoint() { check(wl_session_checkpoint(get())); }

    // Replaces the conversation with these messages, a JSON array; if the last message is the user's, generate() gives the answer.
    HistoryRead set_messages(std::string_view json)
    {
        HistoryRead found{};
        check(wl_session_set_messages(get(), json.data(), json.size(), &found.reused, &found.read));
        return found;
    }

    // Replaces the conversation with these messages: pairs of role and content.
    void set_messages(const std::vector<std::pair<std::string, std::string>> &messages)
    {
        std::vector<wl_message> pointers;
        for (const auto &message : messages)
            pointers.push_back({message.first.c_str(), message.second.c_str()});
        check(wl_chat_set_messages(get(), pointers.data(), pointers.size()));
    }

    // Sets whether the template requests thinking text before the answer: 1, 0, or -1 for its default.
    void thinking(int request) { check(wl_chat_thinking(get(), request)); }
    // Sets a variable of the model's template, as JSON; "null" leaves it undefined.
    void variable(const std::string &name, const std::string &json) { check(wl_chat_variable(get(), name.c_str(), json.c_str())); }
    // Sets the functions that the model may call: a JSON array of schemas.
    void tools(std::string_view json) { check(wl_chat_tools(get(), json.data(), json.size())); }
    // Constrains all later answers; WL_CONSTRAINT_NONE removes the constraint.
    void constrain(wl_constraint kind, std::string_view grammar = {})
    {
        check(wl_session_constrain(get(), kind, grammar.data(), grammar.size()));
    }
    void system(std::string_view text) { check(wl_chat_system(get(), text.data(), text.size())); }
    void undo() { check(wl_chat_undo(get())); }

    // The logit biases belong to the session.
    wl_sampler_params sampler() const
    {
        auto params = with_size<wl_sampler_params>();
        check(wl_session_get_sampler(get(), &params));
        return params;
    }

    // `function` returns 0 to continue; NULL removes it.
    void set_progress(wl_progress_fn function, void *user = nullptr)
    {
        check(wl_session_set_progress(get(), function, user));
    }

    void set_sampler(const SamplerParams &params) { check(wl_session_set_sampler(get(), &params)); }
    void reset() { check(wl_session_reset(get())); }
    void mark() { check(wl_session_mark(get())); }
    void rewind(uint64_t position) { check(wl_session_rewind(get(), position)); }

    std::vector<unsigned char> state() const
    {
        size_t size = 0;
        check(wl_state_size(get(), &size));
        std::vector<unsigned char> bytes(size);
        check(wl_state_write(get(), bytes.data(), bytes.size(), &size));
        bytes.resize(size);
        return bytes;
    }

    void restore(const std::vector<unsigned char> &state) { check(wl_state_read(get(), state.data(), state.size())); }
    void save(const std::string &path) const { check(wl_state_save(get(), path.c_str())); }
    void load(const std::string &path) { check(wl_state_load(get(), path.c_str())); }

    // May be called from any thread.
    void cancel() const { check(wl_session_cancel(get())); }
    void clear_cancel() const { check(wl_session_clear_cancel(get())); }

    wl_session *get() const noexcept { return session_.get(); }

private:
    explicit Session(wl_session *session) : session_(session) {}

    struct Call {
        const OnText &on_text;
        const Hooks &hooks;
        std::exception_ptr thrown;

        // An exception must not pass through the library, so it is stored here, and the generation stops.
        template <typename Function>
        int guard(Function function) noexcept
        {
            try {
                return thrown || !function();
            } catch (...) {
                thrown = std::current_exception();
                return 1;
            }
        }
    };

    static int take(const char *text, size_t length, void *user) noexcept
    {
        auto &call = *static_cast<Call *>(user);
        return call.guard([&] { return call.on_text(std::string_view(text, length)); });
    }

    static int take_token(uint32_t id, float logprob, const char *text, size_t length, void *user) noexcept
    {
        auto &call = *static_cast<Call *>(user);
        return call.guard([&] { return !call.hooks.on_token || call.hooks.on_token({id, logprob, {text, length}}); });
    }

    static void take_logits(float *logits, size_t count, void *user) noexcept
    {
        auto &call = *static_cast<Call *>(user);
        call.guard([&] { return call.hooks.on_logits(logits, count), true; });
    }

    template <typename Function>
    static wl_generate_result run(Call call, const wl_generate_params &params, Function function)
    {
        wl_generate_params with = params;
        if (call.hooks.on_token || call.hooks.on_logits) {
            with.on_token = take_token;
            with.on_logits = call.hooks.on_logits ? take_logits : nullptr;
            with.user = &call;
        }
        auto result = with_size<wl_generate_result>();
        wl_status status = function(&with, take, &call, &result);
        if (call.thrown)
            std::rethrow_exception(call.thrown);
        check(status);
        return result;
    }

    std::unique_ptr<wl_session, FreeSession> session_;
};

// Sessions of one model that step together: one pass over the weights serves them all. Movable, and frees itself.
class Batch {
public:
    // Makes a batch for up to `most` sessions like this one; it computes with this session's threads.
    Batch(const Session &session, size_t most)
    {
        wl_batch *batch = nullptr;
        check(wl_batch_new(session.get(), most, &batch));
        batch_.reset(batch);
    }

    // Each session chooses a token and reads it.
    std::vector<uint32_t> step(const std::vector<Session *> &sessions)
    {
        auto handles = of(sessions);
        std::vector<uint32_t> tokens(handles.size());
        check(wl_batch_step(batch_.get(), handles.data(), handles.size(), tokens.data()));
        return tokens;
    }

    // Session i reads tokens[i].
    void feed(const std::vector<Session *> &sessions, const std::vector<uint32_t> &tokens)
    {
        if (tokens.size() != sessions.size())
            throw std::invalid_argument("expected one token for each session");
        auto handles = of(sessions);
        check(wl_batch_feed(batch_.get(), handles.data(), tokens.data(), handles.size()));
    }

    // Advances running generations by one token each and returns their texts, whose data() is NULL where a generation has ended. They are
    // valid until the session's next call.
    std::vector<std::string_view> generate(const std::vector<Session *> &sessions)
    {
        auto handles = of(sessions);
        std::vector<const char *> texts(handles.size());
        std::vector<size_t> lengths(handles.size());
        check(wl_batch_generate(batch_.get(), handles.data(), handles.size(), texts.data(), lengths.data()));
        std::vector<std::string_view> views;
        for (size_t i = 0; i < texts.size(); i++)
            views.emplace_back(texts[i], lengths[i]);
        return views;
    }

private:
    static std::vector<wl_session *> of(const std::vector<Session *> &sessions)
    {
        std::vector<wl_session *> handles;
        for (const Session *session : sessions)
            handles.push_back(session->get());
        return handles;
    }

    std::unique_ptr<wl_batch, FreeBatch> batch_;
};

} // namespace waterline

#endif
