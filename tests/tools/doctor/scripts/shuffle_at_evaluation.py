"""The evaluation is shuffled."""

from common import Ready, evaluate, loader, train

if __name__ == "__main__":
    test = loader(Ready(128), shuffle=True)
    train(loader(Ready()), after=lambda network: evaluate(network, test))
