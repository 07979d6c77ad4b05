"""LSTM, GRU and RNN of static length, written step by step."""
