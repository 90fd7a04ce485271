// Several answers at once, with one pass over the weights per token of them all. First, a greedy completion shows the probability of each
// token.
//
//   c++ -std=c++17 together.cpp -o together $(pkg-config --cflags --libs waterline)
//   ./together [MODEL.gguf]
#include <cmath>
#include <iostream>
#include <waterline.hpp>

int main(int argc, char **argv)
try {
    auto model = argc > 1 ? waterline::Model::open(argv[1]) : waterline::Model::builtin();
    waterline::SamplerParams sampler;
    sampler.temperature = 0;
    waterline::SessionParams params;
    params.sampler = &sampler;

    waterline::Session story(model, params);
    story.feed(model.tokenize("Once upon a time"));
    waterline::GenerateParams limits;
    limits.max_tokens = 5;
    limits.logprobs = 1;
    waterline::Session::Hooks hooks;
    hooks.on_token = [](const waterline::Session::Token &token) {
        std::cout << token.text << " (" << std::exp(token.logprob) << ")";
        return true;
    };
    story.generate([](std::string_view) { return true; }, limits, hooks);
    std::cout << "\n";

    const std::vector<std::string> messages{"My name is Anna.", "Tell me a story.", "What is the color of the sky?"};
    std::vector<waterline::Session> sessions;
    for (const auto &message : messages) {
        sessions.emplace_back(model, params);
        sessions.back().start_answer(message);
    }
    std::vector<waterline::Session *> all;
    for (auto &session : sessions)
        all.push_back(&session);
    waterline::Batch batch(sessions[0], sessions.size());
    std::vector<std::string> answers(sessions.size());
    for (bool more = true; more;) {
        more = false;
        auto texts = batch.generate(all);
        for (size_t i = 0; i < texts.size(); i++) {
            answers[i] += texts[i];
            more |= texts[i].data() != nullptr;
        }
    }
    for (size_t i = 0; i < answers.size(); i++)
        std::cout << messages[i] << " -> " << answers[i] << "\n";
} catch (const waterline::Error &error) {
    std::cerr << "together: " << error.what() << "\n";
    return 1;
}
