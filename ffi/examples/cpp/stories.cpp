// Two ends of one story: a session is forked, and each copy continues with different random
// numbers.
//
//   c++ -std=c++17 stories.cpp -o stories $(pkg-config --cflags --libs waterline)
//   ./stories [MODEL.gguf]
#include <iostream>
#include <waterline.hpp>

int main(int argc, char **argv)
try {
    auto model = argc > 1 ? waterline::Model::open(argv[1]) : waterline::Model::builtin();
    std::cerr << model.name() << ", " << model.info().parameters << " parameters, " << model.plan().state_bytes
              << " bytes a session\n";

    waterline::SamplerParams sampler;
    sampler.seed = 1;
    waterline::SessionParams params;
    params.sampler = &sampler;
    waterline::Session one(model, params);
    // A text begins with the model's bos token, if it has one, and ends without a space.
    std::vector<uint32_t> prompt;
    if (auto bos = model.info().bos; bos >= 0)
        prompt.push_back(static_cast<uint32_t>(bos));
    for (uint32_t token : model.tokenize("Once upon a time, a small dog found a red ball."))
        prompt.push_back(token);
    one.feed(prompt);

    waterline::Session other = one.fork();
    sampler.seed = 2;
    other.set_sampler(sampler);

    waterline::GenerateParams limits;
    limits.max_tokens = 40;
    auto show = [](std::string_view piece) {
        std::cout << piece << std::flush;
        return true;
    };
    for (auto *session : {&one, &other}) {
        auto result = session->generate(show, limits);
        std::cout << "\n(" << result.tokens << " tokens)\n";
    }
    return 0;
} catch (const waterline::Error &error) {
    std::cerr << "stories: " << error.what() << '\n';
    return 1;
}
