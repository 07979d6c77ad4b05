// Runs a library once and prints its outputs:  ./example model.so [INPUT.bin ...]
// Each file holds one input's numbers as they lie in memory, in the order of the inputs; an input
// without a file is zero.
#include <fstream>
#include <iostream>
#include <iterator>

#include "fewtune.hpp"

template <class T>
void print(const fewtune::Array& output) {
  for (size_t i = 0; i < std::min<size_t>(output.size(), 10); ++i) {
    std::cout << " " << +output.data<T>()[i];
  }
}

int main(int count, char** arguments) try {
  fewtune::Session session(count > 1 ? arguments[1] : "./model.so");
  std::map<std::string, fewtune::View> inputs;
  std::vector<std::vector<char>> memory;
  for (const fewtune::Tensor& input : session.inputs()) {
    std::vector<char> bytes(input.bytes());
    const int place = static_cast<int>(memory.size()) + 2;
    if (place < count) {
      std::ifstream file(arguments[place], std::ios::binary);
      bytes.assign(std::istreambuf_iterator<char>(file), {});
      if (bytes.size() != input.bytes()) {
        throw fewtune::Error(std::string(arguments[place]) + " has " +
                             std::to_string(bytes.size()) + " bytes: input " + input.name +
                             " takes " + std::to_string(input.bytes()));
      }
    }
    memory.push_back(std::move(bytes));
    const void* data = memory.back().data();
    inputs.emplace(input.name, fewtune::View(data, input.dtype, input.shape));
  }
  std::cout.precision(9);
  for (const fewtune::Array& output : session.run(inputs)) {
    std::cout << output.name << " " << output.dtype << " " << fewtune::text_of(output.shape) << ":";
    if (output.dtype == "float32") print<float>(output);
    if (output.dtype == "float64") print<double>(output);
    if (output.dtype == "int64") print<int64_t>(output);
    if (output.dtype == "int32") print<int32_t>(output);
    if (output.dtype == "uint8") print<uint8_t>(output);
    std::cout << "\n";
  }
} catch (const std::exception& fault) {
  std::cerr << "error: " << fault.what() << "\n";
  return 2;
}
