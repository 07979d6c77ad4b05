"""LSTM, GRU and RNN of static length, unrolled or left to one kernel."""
